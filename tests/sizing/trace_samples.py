"""A small file of each kind of trace, as its public source describes it (`sizing.trace_files.FORMATS` names them)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence


def json_lines(rows: Sequence[Mapping[str, object]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


AZURE_2023 = b"""\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:04.0781490,110,27
"""
AZURE_2024 = b"""\
TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
2024-05-10 00:00:01+00:00,76,15
"""
MOONCAKE = b"""\
{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2, 3]}
{"timestamp": 0, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14, 15]}
{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
"""
BURST_1 = b"""\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
120,GPT-4,300,0,300,API log
"""
BURST_3 = b"""\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
19440110.0,1722ac82-0a46,43,GPT-4,906,446,1352,Conversation log
19440161.0,d5983bf9-4b48,2,ChatGPT,36,29,65,Conversation log
19440192.0,1722ac82-0a46,9,GPT-4,1360,210,1570,Conversation log
"""
OTLP = json_lines(
    [
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "chat"}}]},
                    "scopeSpans": [
                        {
                            "scope": {},
                            "spans": [
                                {
                                    "name": "chat llama",
                                    "startTimeUnixNano": "1581452772000000321",
                                    "attributes": [
                                        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
                                        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "120"}},
                                        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "30"}},
                                        {"key": "gen_ai.conversation.id", "value": {"stringValue": "conv_5j66"}},
                                    ],
                                },
                                {"name": "GET /", "startTimeUnixNano": "1581452772100000000", "attributes": []},
                                {
                                    "name": "invoke_agent",
                                    "startTimeUnixNano": "1581452772000000000",
                                    "attributes": [
                                        {"key": "gen_ai.operation.name", "value": {"stringValue": "invoke_agent"}},
                                        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "999"}},
                                        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "999"}},
                                    ],
                                },
                                {
                                    "name": "chat llama",
                                    "startTimeUnixNano": "1581452773500000000",
                                    "attributes": [
                                        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "7"}},
                                        {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "9"}},
                                    ],
                                },
                            ],
                        }
                    ],
                }
            ]
        }
    ]
)
SPANS = json_lines(
    [
        {"name": "tool", "start_time": "2024-05-10T14:00:00.000000Z", "attributes": {}},
        {
            "name": "chat",
            "start_time": "2024-05-10T14:00:00.250000Z",
            "attributes": {"gen_ai.usage.input_tokens": 11, "gen_ai.usage.output_tokens": 5},
        },
        {
            "name": "chat",
            "start_time": "2024-05-10T14:00:01.500000Z",
            "attributes": {"gen_ai.usage.input_tokens": 12, "gen_ai.usage.output_tokens": 6},
        },
    ]
)
VLLM_SPANS = json_lines(
    [
        {
            "name": "llm_request",
            "startTimeUnixNano": 1715349600250000000,
            "attributes": {"gen_ai.usage.prompt_tokens": 11, "gen_ai.usage.completion_tokens": 5},
        },
        {
            "name": "llm_request",
            "startTimeUnixNano": 1715349601500000000,
            "attributes": {"gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 6},
        },
    ]
)
RESPONSES = json_lines(
    [
        {"id": "chatcmpl-1", "created": 1715349600, "usage": {"prompt_tokens": 9, "completion_tokens": 3}},
        {"id": "chatcmpl-2", "created": 1715349602, "usage": {"prompt_tokens": 8, "completion_tokens": 2}},
    ]
)
GATEWAY = json_lines(
    [
        {"startTime": 1715349600.25, "endTime": 1.7e9, "prompt_tokens": 9, "completion_tokens": 3, "session_id": "u7"},
        {"startTime": 1715349602.5, "endTime": 1.7e9, "prompt_tokens": 8, "completion_tokens": 2, "session_id": "u7"},
    ]
)
PAIRS = b"""\
INFO time="2024-05-10 14:00:00.25" status=200 prompt_tokens=9 completion_tokens=3, session=a
INFO time="2024-05-10 14:00:02.5" status=200 prompt_tokens=8 completion_tokens=2, session=b
"""
OWN = b"arrival_s,isl,osl,session,class\n0.5,10,1,x,chat\n2,20,2,y,batch\n2,30,3,x,chat\n"
ALL = [
    OWN,
    AZURE_2023,
    AZURE_2024,
    MOONCAKE,
    BURST_1,
    BURST_3,
    OTLP,
    SPANS,
    VLLM_SPANS,
    RESPONSES,
    GATEWAY,
    PAIRS,
]
