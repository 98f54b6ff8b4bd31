"""The files of `sizing deploy` against what their projects publish: schemas, and the source that defines options.

python -m validation.deployments FOLDER

FOLDER holds what docs/deployments.md names, downloaded by hand. Plans of several layouts, engines and loads are made by
formula, each is exported in every format, and a field, option or value that the project does not define is a fault, as
are wrong types: `kubectl apply` would drop such a field, Helm would not read it, and an engine would not start.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import yaml
from jsonschema import Draft202012Validator

from sizing.analyses.pools import Pools, pools_of
from sizing.catalog import Layout
from sizing.cli.shapes import pools_json
from sizing.deploy.formats import FORMATS
from sizing.deploy.settings import DeployError, Deployment, deployment_of
from sizing.edge import BY_FORMULA
from sizing.estimate import estimate
from sizing.planner import size
from sizing.plans import Fleet, Plan
from sizing.question import Question
from sizing.text import as_json
from sizing.workload import Lengths, Limit, Prefix, Sla, Workload

Node = dict[str, Any]

# --- What projects publish


def strict(node: Any) -> Any:
    """A schema that also refuses fields without a name in it, as `kubectl apply --validate=strict` does. An object
    without any named field (`metadata` of a custom resource) stays open."""
    if not isinstance(node, dict):
        return node
    closed = dict(node)
    if node.get("x-kubernetes-int-or-string") or node.get("format") == "int-or-string":
        closed["type"] = ["integer", "string"]
    if isinstance(named := node.get("properties"), dict):
        closed["properties"] = {name: strict(inner) for name, inner in named.items()}
        if not node.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    for key in ("items", "additionalProperties"):
        if key in closed:
            closed[key] = strict(closed[key])
    return closed


Classes = dict[str, dict[str, str]]
"""Class -> field -> its annotation, as written."""


@dataclass(frozen=True)
class Published:
    """What was found in a folder, each with the file it is from.

    `kinds`: schema by (apiVersion, kind). `helm`: of the chart's values. `options`: of a command line, by the name of
    the folder that holds its source. `classes`: of a YAML configuration, likewise.
    """

    kinds: dict[tuple[str, str], tuple[str, Node]] = field(default_factory=dict)
    helm: list[tuple[str, Node]] = field(default_factory=list)
    options: dict[str, frozenset[str]] = field(default_factory=dict)
    classes: dict[str, Classes] = field(default_factory=dict)


def published(folder: Path) -> Published:
    """Everything in a folder that can be read as a schema: custom resource definitions, Kubernetes' swagger.json, the
    chart's values.schema.json, and folders of Python source."""
    found = Published()
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix in (".yaml", ".yml"):
            for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition":
                    found.kinds.update({key: (name, schema) for key, schema in custom(document["spec"])})
        elif path.suffix == ".json":
            document = json.loads(path.read_text(encoding="utf-8"))
            if "servingEngineSpec" in document.get("properties", {}):
                found.helm.append((name, strict(document)))
            found.kinds.update({key: (name, schema) for key, schema in built_in(document.get("definitions", {}))})
        elif path.is_dir() and (sources := sorted(path.glob("*.py"))):
            trees = [ast.parse(source.read_text(encoding="utf-8")) for source in sources]
            found.options[path.name] = frozenset(option for tree in trees for option in options_in(tree))
            found.classes[path.name] = {name: fields for tree in trees for name, fields in classes_in(tree)}
    return found


def custom(spec: Node) -> Iterator[tuple[tuple[str, str], Node]]:
    """Schemas of a custom resource by (apiVersion, kind)."""
    for version in spec["versions"]:
        schema = (version.get("schema") or spec["validation"])["openAPIV3Schema"]
        yield (f"{spec['group']}/{version['name']}", spec["names"]["kind"]), strict(schema)


def built_in(definitions: Node) -> Iterator[tuple[tuple[str, str], Node]]:
    """Schemas of Kubernetes' own objects by (apiVersion, kind)."""
    closed = {name: strict(schema) for name, schema in definitions.items()}
    for name, schema in definitions.items():
        for each in schema.get("x-kubernetes-group-version-kind", ()):
            version = "/".join(filter(None, (each.get("group", ""), each["version"])))
            yield (version, each["kind"]), {"$ref": f"#/definitions/{name}", "definitions": closed}


OPTION = re.compile(r"--[a-z][\w-]*")


def options_in(tree: ast.AST) -> Iterator[str]:
    """Options that source defines: written out, as for argparse and click, or fields annotated `A[...]`, from which
    SGLang makes them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OPTION.fullmatch(node.value):
            yield node.value
        elif isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation).startswith("A["):
            yield f"--{ast.unparse(node.target).replace('_', '-')}"


def classes_in(tree: ast.AST) -> Iterator[tuple[str, dict[str, str]]]:
    """Classes with their annotated fields, those of bases in the same file included; members of an enumeration have
    their value in place of an annotation."""
    known: Classes = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            inherited = [known.get(ast.unparse(base), {}) for base in node.bases]
            own = {
                each.target.id: ast.unparse(each.annotation)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
            members = {
                ast.unparse(each.targets[0]): str(each.value.value)
                for each in node.body
                if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
            }
            known[node.name] = {name: kind for base in inherited for name, kind in base.items()} | members | own
            yield node.name, known[node.name]


# --- Faults


def faults_of_object(content: Node, schema: Node) -> Iterator[str]:
    for error in Draft202012Validator(schema).iter_errors(content):
        yield f"{error.json_path}: {error.message[-200:]}"  # the value, which may be long, comes first


def faults_of_line(words: Iterable[str], known: frozenset[str]) -> Iterator[str]:
    """Options without a definition; an engine that has `--x` as a switch has `--no-x` too."""
    for word in words:
        if OPTION.fullmatch(word) and not {word, word.replace("--no-", "--", 1)} & known:
            yield f"{word}: no such option"


def faults_of_config(config: Node, classes: Classes, name: str) -> Iterator[str]:
    """Keys without a field, and words that are none of an enumeration's."""
    for key, value in config.items():
        kind = classes[name].get(key)
        if kind is None:
            yield f"{name}.{key}: no such field"
            continue
        inner = next((word for word in re.findall(r"\w+", kind) if word in classes), None)
        allowed = words_allowed(kind, classes.get(inner or "", {}))
        if isinstance(value, dict) and inner:
            yield from faults_of_config(value, classes, inner)
        elif isinstance(value, str) and allowed and value not in allowed:
            yield f"{name}.{key}: {value!r} is none of {', '.join(sorted(allowed))}"


def words_allowed(kind: str, members: Mapping[str, str]) -> set[str]:
    """Of an annotation `Literal[...]` or an enumeration; empty where any word may stand."""
    literal = re.search(r"Literal(\[.*?\])", kind)
    return set(ast.literal_eval(literal[1])) if literal else {*members.values()}


CONFIG_CLASS = "TorchLlmArgs"
"""TensorRT-LLM's, of which the configuration of trtllm-serve is a part."""
Row = tuple[str, str, list[str]]
"""What was checked, against which file (empty: none was there), and its faults."""


def checked(plan: Deployment, against: Published) -> Iterator[Row]:
    """One plan in every format that can hold it, but vLLM's line, which its own parser reads in the tests."""
    for name, files_of in FORMATS.items():
        if name == "vllm":
            continue
        try:
            files = files_of(plan)
        except DeployError:
            continue
        for file, content in files.items():
            if file.endswith(".sh"):
                line = content.partition("\nexec ")[2].replace("\\\n", "")
                yield of_line(f"{name}: {file}", name, shlex.split(line), against)
                continue
            for document in yaml.safe_load_all(content):
                yield from of_document(f"{name}: {file}", document, against)


def of_line(what: str, source: str, words: list[str], against: Published) -> Row:
    known = against.options.get(source)
    return what, f"{source}/" if known else "", list(faults_of_line(words, known)) if known else []


def of_config(what: str, source: str, config: Node, against: Published) -> Row:
    classes = against.classes.get(source, {})
    known = CONFIG_CLASS in classes
    return what, f"{source}/" if known else "", list(faults_of_config(config, classes, CONFIG_CLASS)) if known else []


def of_document(what: str, document: Node, against: Published) -> Iterator[Row]:
    if "kind" in document:
        source, schema = against.kinds.get((document["apiVersion"], document["kind"]), ("", {}))
        kind = f"{what} ({document['kind']})"
        open_below = schema.get("properties", {}).get("spec", {}).get("x-kubernetes-preserve-unknown-fields")
        if source and open_below and "properties" not in schema["properties"]["spec"]:
            yield kind, "", [f"{source} leaves spec open: take the full definition"]
        else:
            yield kind, source, list(faults_of_object(document, schema))
        if document["kind"] == "DynamoGraphDeployment":
            yield from of_workers(what, document, against)
    elif "servingEngineSpec" in document:
        source, schema = against.helm[0] if against.helm else ("", {})
        yield what, source, list(faults_of_object(document, schema))
    elif "kv_cache_config" in document:
        yield of_config(what, "trtllm", document, against)
    else:
        yield what, "", []


def of_workers(what: str, graph: Node, against: Published) -> Iterator[Row]:
    """The command lines of a graph's workers, by the options of Dynamo and of the engine that its image has."""
    source = f"dynamo-{graph['spec']['backendFramework']}"
    for part in graph["spec"]["components"]:
        for container in part["podTemplate"]["spec"]["containers"]:
            if words := container.get("args", []):
                yield of_line(f"{what} (args of {part['name']})", source, words, against)
            if "--override-engine-args" in words:
                config = json.loads(words[words.index("--override-engine-args") + 1])
                yield of_config(f"{what} (engine of {part['name']})", source, config, against)


# --- Plans


SLA = Sla(Limit("ttft", 95, 2.0), Limit("itl", 95, 0.1))
LENGTHS = Lengths(2000, 256)
CASES: tuple[tuple[str, str, str, Layout, Node], ...] = (
    ("Qwen/Qwen3-8B", "h100_sxm", "bf16", Layout(1), {}),
    ("Qwen/Qwen3-8B", "h100_sxm", "fp8", Layout(1), {"prefix": Prefix(500, 0.5)}),
    ("Qwen/Qwen3-32B", "h200_sxm", "bf16", Layout(8), {"lengths": Lengths(2000, 256, 0.5, 0.5)}),
    ("Qwen/Qwen3-32B", "h200_sxm", "bf16", Layout(4, 2), {}),
    ("Qwen/Qwen3-32B", "h100_sxm", "fp8", Layout(8, 2), {}),
    ("Qwen/Qwen3-235B-A22B", "h200_sxm", "fp8", Layout(8, ep=8), {}),
    ("Qwen/Qwen3-235B-A22B", "h200_sxm", "fp8", Layout(dp=8, ep=8), {}),
)
"""Model, GPU, precision, layout, and what the load has beside LENGTHS. One GPU, TP, PP on one server and on two, expert
parallelism and data-parallel attention; each with a limited queue and with two pools too."""
ENGINES = ("vllm", "sglang", "trtllm")
QUEUE = 32


def plans() -> Iterator[tuple[str, Deployment]]:
    """Plans by formula, with their names."""
    for model, gpu, precision, layout, load in CASES:
        for engine in ENGINES:
            asked = Question(model, Workload(**{"lengths": LENGTHS, "rate_per_s": 20.0, **load}), SLA)
            candidate = estimate(model, gpu, layout, precision, asked.workload.lengths, engine=engine)
            fleet = size(asked, candidate, BY_FORMULA)
            if not isinstance(fleet, Fleet):
                raise click.ClickException(f"{model} {layout} {engine}: {fleet.why}")
            document = as_json(Plan(asked, (fleet,), ()))
            name = f"{model} {layout} {precision} {engine}"
            yield name, deployment_of(document, namespace="chat")
            replica = candidate.replica
            limited = replace(replica, batching=replace(replica.batching, max_waiting=QUEUE))
            queued = replace(fleet, candidate=replace(candidate, replica=limited))
            yield f"{name} queue", deployment_of(as_json(Plan(asked, (queued,), ())))
            pools = pools_of(asked, [candidate], BY_FORMULA)
            if isinstance(pools, Pools):
                yield f"{name} pools", deployment_of(document | {"disaggregated": pools_json(pools, asked)})


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
def deployments(folder: Path) -> None:
    """Check what `sizing deploy` writes against the schemas and sources in FOLDER. Exit code 1: something is wrong."""
    against = published(folder)
    files: Counter[tuple[str, str]] = Counter()
    faults: dict[str, str] = {}
    for name, plan in plans():
        for what, source, wrong in checked(plan, against):
            files[what, source] += 1
            faults.update({f"{what}: {fault}": name for fault in wrong if f"{what}: {fault}" not in faults})
    for (what, source), count in sorted(files.items()):
        click.echo(f"{what:<50} {count:>3} times against {source}" if source else f"{what:<50} not checked: no schema")
    for fault, name in faults.items():
        click.echo(f"fault: {fault} (first in {name})")
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    deployments()
