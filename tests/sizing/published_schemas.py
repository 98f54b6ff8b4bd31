"""What the projects' published schemas say of the fields that our files use, in our own words, as JSON Schemas.

A field that is not here is refused, so that a misspelt one fails. Restated from what the projects publish, so that no
file of theirs is needed here; `python -m validation.deployments` checks the same exports against the files themselves.
"""

from __future__ import annotations

from typing import Any

LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""RFC 1035, as names of Services must be."""
TEXT: dict[str, Any] = {"type": "string"}
COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
NAME: dict[str, Any] = {"type": "string", "pattern": LABEL, "maxLength": 63}
WORDS: dict[str, Any] = {"type": "array", "items": TEXT}


def thing(required: str = "", /, **fields: Any) -> dict[str, Any]:
    """An object with these fields and no others."""
    return {"type": "object", "properties": fields, "required": required.split(), "additionalProperties": False}


def several(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


def one(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


METADATA = thing("name", name=NAME, namespace=NAME, annotations={"type": "object", "additionalProperties": TEXT})
RESOURCES: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string", "pattern": "^[0-9]+$"}}
CONTAINER = thing(
    "name image",
    name=one("main", "kserve-container"),
    image={"type": "string", "pattern": "^[a-z0-9./-]+:[A-Za-z0-9.-]+$"},
    command=WORDS,
    args=WORDS,
    ports=several(thing("containerPort", containerPort=COUNT, protocol=one("TCP", "UDP"))),
    resources=thing("", limits=RESOURCES, requests=RESOURCES),
    envFrom=several(thing("", secretRef=thing("name", name=NAME, optional={"type": "boolean"}))),
    volumeMounts=several(thing("name mountPath", name=NAME, mountPath=TEXT)),
)
VOLUME = thing("name", name=NAME, emptyDir=thing("", medium=one("Memory")), configMap=thing("name", name=NAME))
TARGET = thing("name", apiVersion=one("apps/v1"), kind=one("Deployment"), name=NAME)

HELM = thing(
    "servingEngineSpec",
    servingEngineSpec=thing(
        "modelSpec",
        enableEngine={"type": "boolean"},
        modelSpec=several(
            thing(
                "name repository tag modelURL replicaCount requestCPU requestMemory requestGPU",
                name=NAME,
                repository=TEXT,
                tag=TEXT,
                modelURL=TEXT,
                replicaCount=COUNT,
                requestCPU=COUNT,
                requestMemory={"type": "string", "pattern": "^[0-9]+Gi$"},
                requestGPU=COUNT,
                requestGPUType=TEXT,
                vllmConfig=thing(
                    "",
                    dtype=TEXT,
                    enableChunkedPrefill={"type": "boolean"},
                    enablePrefixCaching={"type": "boolean"},
                    extraArgs=WORDS,
                    gpuMemoryUtilization={"type": "number"},
                    maxModelLen=COUNT,
                    maxNumSeqs=COUNT,
                    tensorParallelSize=COUNT,
                ),
            )
        ),
    ),
)
CONFIG_MAP = thing(
    "apiVersion kind metadata data",
    apiVersion=one("v1"),
    kind=one("ConfigMap"),
    metadata=METADATA,
    data={"type": "object", "additionalProperties": TEXT},
)
INFERENCE_SERVICE = thing(
    "apiVersion kind metadata spec",
    apiVersion=one("serving.kserve.io/v1beta1"),
    kind=one("InferenceService"),
    metadata=METADATA,
    spec=thing(
        "predictor",
        predictor=thing(
            "containers",
            minReplicas=COUNT,
            maxReplicas=COUNT,
            containers={"type": "array", "items": CONTAINER, "minItems": 1, "maxItems": 1},
            volumes=several(VOLUME),
        ),
    ),
)
DYNAMO = thing(
    "apiVersion kind metadata spec",
    apiVersion=one("nvidia.com/v1beta1"),
    kind=one("DynamoGraphDeployment"),
    metadata=METADATA,
    spec=thing(
        "components",
        backendFramework=one("sglang", "vllm", "trtllm"),
        components=several(
            thing(
                "name",
                name={"type": "string", "maxLength": 63},
                type=one("frontend", "worker", "prefill", "decode", "planner", "epp"),
                replicas=COUNT,
                multinode=thing("nodeCount", nodeCount={"type": "integer", "minimum": 2}),
                podTemplate=thing("spec", spec=thing("containers", containers=several(CONTAINER))),
            )
        ),
    ),
)
SCALED_OBJECT = thing(
    "apiVersion kind metadata spec",
    apiVersion=one("keda.sh/v1alpha1"),
    kind=one("ScaledObject"),
    metadata=METADATA,
    spec=thing(
        "scaleTargetRef triggers",
        scaleTargetRef=TARGET,
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        triggers=several(
            thing(
                "type metadata",
                type=one("prometheus"),
                metricType=one("AverageValue", "Value", "Utilization"),
                metadata=thing(
                    "serverAddress query threshold",
                    serverAddress=TEXT,
                    query=TEXT,
                    threshold=TEXT,
                    ignoreNullValues=one("true", "false"),
                ),
            )
        ),
    ),
)
QUANTITY: dict[str, Any] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]{1,3})?$"}
HPA = thing(
    "apiVersion kind metadata spec",
    apiVersion=one("autoscaling/v2"),
    kind=one("HorizontalPodAutoscaler"),
    metadata=METADATA,
    spec=thing(
        "scaleTargetRef maxReplicas",
        scaleTargetRef=TARGET,
        minReplicas=COUNT,
        maxReplicas=COUNT,
        metrics=several(
            thing(
                "type pods",
                type=one("Pods"),
                pods=thing(
                    "metric target",
                    metric=thing("name", name=TEXT),
                    target=thing("type averageValue", type=one("AverageValue"), averageValue=QUANTITY),
                ),
            )
        ),
    ),
)
ADAPTER = thing(
    "rules",
    rules=thing(
        "custom",
        custom=several(
            thing(
                "seriesQuery resources name metricsQuery",
                seriesQuery=TEXT,
                resources=thing(
                    "",
                    overrides={"type": "object", "additionalProperties": thing("resource", resource=TEXT)},
                ),
                name=thing("as", **{"as": TEXT}),
                metricsQuery=TEXT,
            )
        ),
    ),
)
TRTLLM = thing(
    "max_batch_size max_num_tokens kv_cache_config scheduler_config",
    tensor_parallel_size=COUNT,
    pipeline_parallel_size=COUNT,
    moe_expert_parallel_size=COUNT,
    enable_attention_dp={"type": "boolean"},
    max_batch_size=COUNT,
    max_num_tokens=COUNT,
    max_seq_len=COUNT,
    enable_chunked_prefill={"type": "boolean"},
    disable_overlap_scheduler={"type": "boolean"},
    return_perf_metrics={"type": "boolean"},
    enable_iter_perf_stats={"type": "boolean"},
    cache_transceiver_config=thing("backend", backend=one("DEFAULT", "UCX", "NIXL", "MPI")),
    kv_cache_config=thing(
        "enable_block_reuse",
        enable_block_reuse={"type": "boolean"},
        max_tokens=COUNT,
        free_gpu_memory_fraction={"type": "number", "minimum": 0, "maximum": 1},
        dtype=TEXT,
    ),
    scheduler_config=thing(
        "capacity_scheduler_policy",
        capacity_scheduler_policy=one("GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"),
    ),
)
"""Of TensorRT-LLM's llm_args.py and KvCacheConfig (Apache-2.0)."""

SCHEMAS: dict[str, dict[str, list[dict[str, Any]]]] = {
    "vllm": {"vllm.sh": []},
    "sglang": {"sglang.sh": []},
    "trtllm": {"trtllm.sh": [], "trtllm-config.yaml": [TRTLLM]},
    "helm": {"values.yaml": [HELM]},
    "kserve": {"inferenceservice.yaml": [INFERENCE_SERVICE]},
    "dynamo": {"dynamographdeployment.yaml": [DYNAMO]},
    "keda": {"scaledobject.yaml": [SCALED_OBJECT]},
    "hpa": {"hpa.yaml": [HPA], "prometheus-adapter.yaml": [ADAPTER]},
}
"""Format -> file -> the schema of each document in it. KServe of TensorRT-LLM has a CONFIG_MAP before."""
