"""The deployment files and docs/deploy.md say what is so: paths exist, names are those of the code, ports agree."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from api.routes import WORKERS_VARIABLE
from calibration.store.database import RECORDS_VARIABLE
from ui import gate

ROOT = Path(__file__).parents[1]
DOC = ROOT / "docs" / "deploy.md"
UNIT = ROOT / "deploy" / "sizing@.service"
FILES = [DOC, ROOT / "Dockerfile", *sorted((ROOT / "deploy").iterdir())]
PORT = "8501"
CODE = [file for room in ("sizing", "calibration", "ui", "api", "learn") for file in (ROOT / room).rglob("*.py")]
PROXY_VARIABLES = {"SIZING_SITE", "SIZING_SERVERS"}


def instructions() -> list[tuple[str, str]]:
    """Instruction and its words, of every line of the Dockerfile; continued lines are one."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return [(line.split()[0], " ".join(line.split()[1:])) for line in lines]


def manifests() -> dict[str, Any]:
    """The objects of the Kubernetes manifest by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())}


def unit() -> dict[str, list[str]]:
    """Settings of the unit's [Service]: every value given, in order."""
    lines = UNIT.read_text().partition("[Service]")[2].partition("[Install]")[0].splitlines()
    found: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in lines if "=" in line and not line.startswith("#")):
        found.setdefault(name, []).append(value)
    return found


def test_every_link_of_the_page_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)]+)\)", DOC.read_text())
    assert links and all((DOC.parent / link.partition("#")[0]).resolve().exists() for link in links)


def test_every_path_of_the_page_exists() -> None:
    named = re.findall(r"(?:deploy|tests|docs)/[\w@./-]+\.\w+", DOC.read_text())
    assert named and all((ROOT / name).exists() for name in named)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_variables_are_those_that_the_code_reads(path: Path) -> None:
    code = "".join(file.read_text() for file in CODE)
    named = set(re.findall(r"SIZING_[A-Z_]+", path.read_text())) - PROXY_VARIABLES
    assert {name for name in named if f'"{name}"' not in code} == set()


def test_every_variable_for_operators_is_on_the_page() -> None:
    named = {name for path in FILES for name in re.findall(r"SIZING_[A-Z_]+", path.read_text())}
    assert named <= set(re.findall(r"SIZING_[A-Z_]+", DOC.read_text()))


def test_every_variable_that_the_service_reads_is_on_the_page_and_in_the_example() -> None:
    read = {name for file in CODE for name in re.findall(r'"(SIZING_[A-Z_]+)"', file.read_text())}
    for path in (DOC, ROOT / "deploy" / "environment.example"):
        assert read - set(re.findall(r"SIZING_[A-Z_]+", path.read_text())) == set()


def test_the_image_is_pinned_small_and_not_root() -> None:
    told = instructions()
    bases = {words.split()[0] for name, words in told if name == "FROM"}
    assert len(bases) == 1 and re.fullmatch(r"python:3\.1[1-3]\.\d+-slim-\w+", bases.pop())
    assert next(words for name, words in reversed(told) if name == "USER") == "10001"
    runs = [words for name, words in told if name == "RUN"]
    assert not any(word in run for run in runs for word in ("apt-get", "gcc", "build-essential"))
    assert any("-r requirements.txt" in run and "--only-binary :all:" in run for run in runs)


def test_what_the_image_copies_exists_and_is_sent_to_the_builder() -> None:
    ignored = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    sent = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    copied = [words.split()[:-1] for name, words in instructions() if name == "COPY" and "--from" not in words]
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists() and source in sent
    assert ignored[0] == "*" and not any(fnmatch(".streamlit/secrets.toml", pattern) for pattern in sent)


def test_what_only_tests_is_not_in_the_image() -> None:
    """tests/test_package.py says what is in which of the two files."""
    assert "requirements-test.txt" not in (ROOT / "Dockerfile").read_text()
    assert "requirements-test.txt" not in (ROOT / ".dockerignore").read_text()


def test_the_image_has_all_files_that_the_program_reads() -> None:
    named = {name for path in CODE for name in re.findall(r'resource\("([^"/]+)', path.read_text())}
    copied = [word for name, words in instructions() if name == "COPY" for word in words.split()]
    assert {"data", "docs", "pyproject.toml"} <= named <= set(copied)


def test_all_agree_on_the_port_and_the_probes() -> None:
    told = dict(instructions())
    assert told["EXPOSE"] == PORT and f"--server.port={PORT}" in told["CMD"]
    assert f"127.0.0.1:{PORT}/healthz" in told["HEALTHCHECK"]
    assert f"127.0.0.1:{PORT}" in (ROOT / "deploy" / "Caddyfile").read_text()
    container = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    assert [str(port["containerPort"]) for port in container["ports"]] == [PORT]
    serve = (ROOT / "serve.py").read_text()
    for probe in ("startupProbe", "readinessProbe"):
        assert f'"{container[probe]["httpGet"]["path"]}"' in serve
        assert container[probe]["timeoutSeconds"] > 4  # ui.health.WITHIN_S
    assert container["livenessProbe"]["httpGet"]["path"] == "/_stcore/health"


def test_pods_have_no_privileges_and_the_files_they_need() -> None:
    spec = manifests()["Deployment"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert spec["securityContext"]["runAsNonRoot"] is True and spec["automountServiceAccountToken"] is False
    told = container["securityContext"]
    assert told["allowPrivilegeEscalation"] is False and told["readOnlyRootFilesystem"] is True
    assert told["capabilities"] == {"drop": ["ALL"]}
    assert str(spec["securityContext"]["runAsUser"]) == dict(instructions())["USER"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted >= {"/tmp", "/etc/sizing", "/var/lib/sizing", "/var/cache/sizing"}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in spec["volumes"]}
    assert {"memory"} <= container["resources"]["limits"].keys()


def test_a_pod_has_room_for_its_workers_on_a_node_of_many_cores() -> None:
    """docs/deploy.md: 650 MB with two of them, 45 MB each."""
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    (workers,) = (int(each["value"]) for each in container["env"] if each["name"] == WORKERS_VARIABLE)
    assert 650 + 45 * workers < 0.75 * 1024 * int(container["resources"]["limits"]["memory"].removesuffix("Gi"))


def test_service_and_disruption_budget_select_the_pods() -> None:
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["Service"]["spec"]["selector"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["minAvailable"] < found["Deployment"]["spec"]["replicas"]


def test_the_unit_starts_the_server_without_privileges() -> None:
    settings = unit()
    (start,) = settings["ExecStart"]
    assert " run serve.py " in start and "--server.port=%i" in start and "--secrets.files=%d/secrets.toml" in start
    assert "--server.address" not in start  # loopback, as configured
    assert settings["User"] == ["sizing"] and settings["CapabilityBoundingSet"] == [""]
    assert settings["ProtectSystem"] == ["strict"] and settings["NoNewPrivileges"] == ["yes"]
    assert "MemoryDenyWriteExecute" not in settings  # numba could not compile
    (folder,) = settings["StateDirectory"]
    assert f"sqlite:////var/lib/{folder}/" in " ".join(settings["Environment"])
    parsed = configparser.RawConfigParser(strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(UNIT.read_text())
    assert parsed["Install"]["WantedBy"] == "multi-user.target"


def test_requests_are_logged_where_the_unit_and_the_image_may_write() -> None:
    """With PostgreSQL too: the default is in the program's own folder, which both see read-only."""
    (folder,) = unit()["StateDirectory"]
    assert f"{RECORDS_VARIABLE}=/var/lib/{folder}/" in " ".join(unit()["Environment"])
    told = dict(instructions())
    (volume,) = json.loads(told["VOLUME"])
    assert f"{RECORDS_VARIABLE}={volume}/" in told["ENV"]


def test_the_example_of_secrets_is_complete_and_holds_none() -> None:
    auth = tomllib.loads((ROOT / "deploy" / "secrets.toml.example").read_text())["auth"]
    assert set(auth) == {"redirect_uri", "cookie_secret", "client_id", "client_secret", "server_metadata_url"}
    assert auth["redirect_uri"].endswith("/oauth2callback")
    assert all("replace me" in auth[name] for name in ("cookie_secret", "client_id", "client_secret"))


def test_the_unit_and_its_pages_have_descriptors_enough() -> None:
    (files,) = unit()["LimitNOFILE"]
    assert int(files) >= 4 * gate.MOST_SESSIONS * gate.FILES_A_SESSION + gate.FILES_BESIDE


def test_every_way_to_serve_a_team_names_the_host_that_it_answers_to() -> None:
    named = gate.HOSTS_VARIABLE
    assert f"\n{named}=planner.example.com\n" in (ROOT / "deploy" / "environment.example").read_text()
    (container,) = manifests()["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"name": named, "value": "planner.example.com"} in container["env"]
    assert f"-e {named}=planner.example.com" in DOC.read_text()
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert set(config["server"]["allowedHosts"]) == {"localhost", "127.0.0.1", "::1"}


def test_each_header_is_set_in_one_place_and_told_to_other_proxies() -> None:
    told, caddy = DOC.read_text(), (ROOT / "deploy" / "Caddyfile").read_text()
    for name, value in gate.HEADERS.items():
        assert f"{name}: {value}" in told and name not in caddy
    assert "Strict-Transport-Security" in caddy


def test_make_app_serves_what_a_team_is_served() -> None:
    assert "streamlit run serve.py " in (ROOT / "Makefile").read_text()


def test_nothing_listens_beyond_loopback_unless_told() -> None:
    config = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text())
    assert config["server"]["address"] == "127.0.0.1"
    assert "127.0.0.1 unless" in DOC.read_text()


def test_options_of_the_benchmarks_are_those_of_the_page() -> None:
    benchmark = (ROOT / "validation" / "speed" / "viewers.py").read_text()
    (command,) = re.findall(r"python -m validation.speed.viewers (.*)", DOC.read_text())
    options = re.findall(r"--\w+", command)
    assert options and all(f'"{option}"' in benchmark for option in options)
