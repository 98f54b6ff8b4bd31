"""`repository build | fill | check` as a user types them; `fill` against the standard library's own words."""

import json
import string
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from calibration.__main__ import main
from calibration.errors import RepositoryError
from triton_tools.repository.commands import BUILD_EPILOG
from triton_tools.repository.source import places, read_source
from triton_tools.repository.template import filled, substitutions

TEMPLATE = 'max_batch_size: ${size}\nparameters { key: "a" value: { string_value: "${engine_dir}" } }\n# $5 and $$\n'
BUILD = ["build", "--engine", "/engines/llama", "--tokenizer", "/tokenizers/llama"]
names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=8)
values = st.text(string.ascii_letters + "/._- ", max_size=8)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["repository", *arguments])


def test_build_then_check(tmp_path: Path) -> None:
    folder = str(tmp_path / "models")
    built = run(*BUILD, folder, "--decoupled", "--policy", "guaranteed_completion", "--max-queue-size", "64")
    assert built.exit_code == 0, built.output
    assert "guaranteed_completion" in built.stderr and "tensorrt_llm_bls" in built.stdout
    checked = run("check", folder)
    assert (checked.exit_code, checked.stdout) == (0, "nothing wrong\n")


def test_check_says_where_and_exits_2(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    run(*BUILD, str(folder))
    file = folder / "tensorrt_llm" / "config.pbtxt"
    lines = file.read_text().splitlines()
    at = next(number for number, line in enumerate(lines, start=1) if "max_batch_size" in line)
    file.write_text(file.read_text().replace("max_batch_size: 128", "max_batch_size: ${triton_max_batch_size}"))
    checked = run("check", str(folder))
    assert checked.exit_code == 2
    assert f"{file}:{at}: error: ${{triton_max_batch_size}} is not filled in" in checked.stdout
    facts = json.loads(run("check", str(folder), "--json").stdout)
    assert {"path": str(file), "line": at, "severity": "error"}.items() <= facts[-1].items()


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "/no/such/folder"],
        ["build", "/tmp/never", "--engine", "/e"],
        ["fill", "/no/such/file", "a:1"],
        ["build", "/tmp/never", "--engine", "/e", "--tokenizer", "/t", "--gpu-device-ids", "one"],
        ["build", "/tmp/never", "--engine", "/e", "--tokenizer", "/t", "--contract", "v0.9"],
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments: list[str]) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert len(ended.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["build", "check", "fill"])
def test_help_shows_an_example(command: str) -> None:
    assert f"python -m calibration repository {command}" in run(command, "--help").stdout


def test_the_examples_of_build_can_be_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [line.split()[4:] for line in BUILD_EPILOG.splitlines() if line.startswith("  python -m")]
    assert len(examples) == 3
    assert [run(*example).exit_code for example in examples] == [0, 0, 0]


def test_fill_prints_as_the_original(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text(TEMPLATE)
    printed = run("fill", str(file), "engine_dir:/e/1-gpu,unknown:1")
    # print() of the original adds one line end; ${size} has no pair and stays; $5 is no placeholder, $$ is a dollar
    expected = TEMPLATE.replace("${engine_dir}", "/e/1-gpu").replace("$$", "$")
    assert (printed.exit_code, printed.stdout) == (0, expected + "\n")
    assert file.read_text() == TEMPLATE


def test_fill_in_place_prints_nothing(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text(TEMPLATE)
    for option, pair in (("-i", "size:8"), ("--in_place", "engine_dir:")):
        assert run("fill", option, str(file), pair).stdout == ""
    assert file.read_text() == TEMPLATE.replace("${size}", "8").replace("${engine_dir}", "").replace("$$", "$")


@pytest.mark.parametrize("pairs", ["engine_dir", "engine_dir:s3://bucket", "a:1,,b:2", ""])
def test_what_the_original_cannot_take_apart_is_refused(pairs: str, tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text(TEMPLATE)
    assert run("fill", "-i", str(file), pairs).exit_code == 2
    assert file.read_text() == TEMPLATE
    with pytest.raises(RepositoryError, match="one colon"):
        substitutions(pairs)


@given(st.dictionaries(names, values, max_size=4), st.lists(names, max_size=6))
def test_known_placeholders_are_filled_and_others_stay(given_values: dict[str, str], used: list[str]) -> None:
    text = "".join(f"<${{{name}}}>" for name in used)
    expected = "".join(f"<{given_values.get(name, f'${{{name}}}')}>" for name in used)
    assert filled(text, given_values) == expected


@given(st.lists(st.tuples(st.sampled_from(["name", "backend", "platform"]), st.integers(0, 3)), max_size=6))
def test_places_know_their_lines_whatever_is_between(fields: list[tuple[str, int]]) -> None:
    text, expected = "", []
    for name, gap in fields:
        text += "\n" * gap + "# a comment: { [\n" * gap
        expected.append((name, text.count("\n") + 1))
        text += f'{name}: "a:{{" '
    assert [(place.name, place.line) for place in places(text).inside] == expected


def test_a_file_that_does_not_fit_the_schema_keeps_its_problem_and_line(tmp_path: Path) -> None:
    file = tmp_path / "config.pbtxt"
    file.write_text('name: "a"\n\nmax_batch: 3\n')
    source = read_source(file)
    assert source.problem_line == 3 and "max_batch" in source.problem
