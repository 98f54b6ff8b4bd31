"""How a language model uses the planner's tools: size, explain, compare, through the official SDK's client.

Run: python -m examples.mcp_client in the repository. Where the package is installed, the server is `sizing-mcp`.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

SERVER = StdioServerParameters(command=sys.executable, args=["-m", "api"], cwd=Path(__file__).parents[1])
ASKED = {"model": "Qwen/Qwen3-32B", "gpu": "h200_sxm", "precision": "fp8", "engine": "vllm", "tp": "2"}
LOAD = {"isl": 2000, "osl": 256, "rate": 20, "ttft": "p95:1s", "itl": "p95:30ms"}


async def call(client: Client, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Call a tool and print the call."""
    print(f"\n> {tool} {json.dumps(given)}")
    answered = await client.call_tool(tool, given)
    answer: dict[str, Any] = answered.structured_content or {}
    return answer


async def talk() -> None:
    """A conversation over the server's standard streams; prints the part of each answer that matters."""
    async with Client(SERVER) as client:
        print("tools:", ", ".join(tool.name for tool in (await client.list_tools()).tools))

        plan = await call(client, "plan", ASKED | LOAD)
        print(f"{plan['sentence']} (band {plan['gpus_low']} to {plan['gpus_high']}, {plan['basis']})")
        print(f"p95 ITL {plan['predicted']['itl_ms']['p95']} ms, p95 TTFT {plan['predicted']['ttft_ms']['p95']} ms")

        why = await call(client, "explain", ASKED | LOAD)
        print(f"{why['binding']} binds. {why['sized_by_means']['why']}")
        for row in why["gpus_if_changed"]:
            print(f"  {row['what']}: {', '.join(f'{change} {gpus} GPUs' for change, gpus in row['changes'].items())}")

        cases = {"8 bits": ASKED | LOAD, "16 bits": ASKED | LOAD | {"precision": "bf16"}}
        compared = await call(client, "compare", {"cases": cases})
        for name, case in compared["cases"].items():
            print(f"{name}: {case['gpus']} GPUs (band {case['gpus_low']} to {case['gpus_high']}, {case['basis']})")


if __name__ == "__main__":
    asyncio.run(talk())
