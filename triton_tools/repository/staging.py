"""A TensorRT-LLM repository for a machine without a GPU: the same models, with the reference engine behind them."""

from __future__ import annotations

import shutil
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2 as pb

from calibration.errors import RepositoryError
from lab.reference.settings import Settings
from lab.reference.tokenizer import FILE_NAME, save_tokenizer
from triton_tools.repository.local import MODELS, Machine, own_parameters, this_cpu
from triton_tools.repository.messages import CONFIG_FILE, as_text


def stage(repository: Path, folder: Path, settings: Settings, machine: Machine | None = None) -> Path:
    """Copy `repository` to `folder`, changed so that the local tritonserver can run it; returns `folder`.

    Three things change: `tensorrt_llm` runs the reference engine on the Python backend, with the repository's own
    parameters; a tokenizer that does not exist here is replaced by the reference tokenizer; and a text model, which
    needs transformers, is left out. `settings` describe the engine and its machine: the size of the model, the largest
    batch, the longest sequence, and, as `kv_tokens`, the memory that the repository may use for its KV cache. Their
    batching, policy and reuse are ignored: the repository determines these, by the backend's defaults if it leaves
    them out.

    Raises:
        RepositoryError: the repository has no `tensorrt_llm` that can be read, or cannot be copied.
    """
    try:
        shutil.copytree(repository, folder)
        _stage_engine(folder / "tensorrt_llm", settings, machine or this_cpu())
        for name in ("preprocessing", "postprocessing"):
            _stage_tokenizer(folder / name, settings.vocab_size)
        for path in [path for path in folder.iterdir() if (path / CONFIG_FILE).exists()]:
            if "model_dir" in _read(path).parameters:
                shutil.rmtree(path)
    except (OSError, shutil.Error, text_format.ParseError) as error:
        raise RepositoryError(f"cannot make {repository} run here: {error}; look at it with: check") from error
    return folder


def _read(folder: Path) -> pb.ModelConfig:
    return text_format.Parse((folder / CONFIG_FILE).read_text(encoding="utf-8"), pb.ModelConfig())


def _stage_engine(folder: Path, settings: Settings, machine: Machine) -> None:
    config = _read(folder)
    config.backend = "python"
    given = {key: value.string_value for key, value in config.parameters.items()}
    own = own_parameters(settings, machine) | {"decoupled": str(config.model_transaction_policy.decoupled)}
    del own["batching"]  # gpt_model_type says it
    for key, value in ({"exclude_input_in_output": "False"} | own | given).items():
        config.parameters[key].string_value = value
    (folder / CONFIG_FILE).write_text(as_text(config))
    shutil.copyfile(MODELS / "tensorrt_llm" / "model.py", folder / "1" / "model.py")


def _stage_tokenizer(folder: Path, vocab_size: int) -> None:
    config = _read(folder)
    if Path(config.parameters["tokenizer_dir"].string_value, FILE_NAME).is_file():
        return
    save_tokenizer(folder, vocab_size)
    config.parameters["tokenizer_dir"].string_value = str(folder)
    (folder / CONFIG_FILE).write_text(as_text(config))
