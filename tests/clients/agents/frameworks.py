"""Loops of agent frameworks against the server: `frameworks.py URL NAME...` prints one JSON object, the answer by name.

Each gives the model one tool, `read_note`, and lets it run until it answers in text.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterable, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import agents
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

MODEL = "script"
SYSTEM, QUESTION = "You read notes.", "What does note.txt say?"


def read_note(name: str) -> str:
    """The text of a note.

    Args:
        name: Of its file.
    """
    assert name == "note.txt", name
    return "heron-4711"


class Note(BaseModel):
    bird: str
    number: int


@dataclass(frozen=True)
class Server:
    url: str

    @property
    def v1(self) -> str:
        return self.url + "/v1"

    def client(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=self.v1, api_key="none", max_retries=0)

    def openai(self) -> OpenAIProvider:
        return OpenAIProvider(openai_client=self.client())

    def anthropic(self) -> AnthropicProvider:
        return AnthropicProvider(api_key="none", base_url=self.url)


Model = Callable[[Server], Any]
Run = Callable[[Server], Awaitable[Any]]


# -- OpenAI Agents SDK ----------------------------------------------------------------------------


def _sdk_agent(model: Any) -> Any:
    agents.set_tracing_disabled(True)
    return agents.Agent("reader", instructions=SYSTEM, model=model, tools=[agents.function_tool(read_note)])


def sdk(model: Model) -> Run:
    async def run(server: Server) -> str:
        return (await agents.Runner.run(_sdk_agent(model(server)), QUESTION)).final_output

    return run


def sdk_streamed(model: Model) -> Run:
    async def run(server: Server) -> str:
        result = agents.Runner.run_streamed(_sdk_agent(model(server)), QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return run


def _sdk_chat(server: Server) -> Any:
    return agents.OpenAIChatCompletionsModel(MODEL, server.client())


def _sdk_responses(server: Server) -> Any:
    return agents.OpenAIResponsesModel(MODEL, server.client())


# -- LangChain ------------------------------------------------------------------------------------


def chain(model: Model) -> Run:
    async def run(server: Server) -> str:
        agent = create_agent(model(server), [read_note], system_prompt=SYSTEM)
        return (await agent.ainvoke({"messages": [("user", QUESTION)]}))["messages"][-1].text

    return run


def chain_streamed(model: Model) -> Run:
    async def run(server: Server) -> str:
        agent = create_agent(model(server), [read_note], system_prompt=SYSTEM)
        texts: dict[str, str] = {}  # by message
        async for part, _ in agent.astream({"messages": [("user", QUESTION)]}, stream_mode="messages"):
            texts[part.id] = texts.get(part.id, "") + part.text
        return list(texts.values())[-1]

    return run


def _chain_chat(server: Server) -> Any:
    return ChatOpenAI(model=MODEL, base_url=server.v1, api_key="none", max_retries=0)


def _chain_responses(server: Server) -> Any:
    return ChatOpenAI(model=MODEL, base_url=server.v1, api_key="none", max_retries=0, use_responses_api=True)


def _chain_anthropic(server: Server) -> Any:
    return ChatAnthropic(model=MODEL, base_url=server.url, api_key="none", max_retries=0)


# -- Pydantic AI ----------------------------------------------------------------------------------


def pydantic(model: Model) -> Run:
    async def run(server: Server) -> str:
        return (await Agent(model(server), system_prompt=SYSTEM, tools=[read_note]).run(QUESTION)).output

    return run


def pydantic_streamed(model: Model) -> Run:
    async def watch(_: Any, events: AsyncIterable[Any]) -> None:
        async for _ in events:
            pass

    async def run(server: Server) -> str:
        agent = Agent(model(server), system_prompt=SYSTEM, tools=[read_note])
        return (await agent.run(QUESTION, event_stream_handler=watch)).output

    return run


def pydantic_note(model: Model) -> Run:
    """The answer is an object that a schema describes."""

    async def run(server: Server) -> Any:
        agent = Agent(model(server), system_prompt=SYSTEM, tools=[read_note], output_type=NativeOutput(Note))
        return (await agent.run(QUESTION)).output.model_dump()

    return run


def _pydantic_chat(server: Server) -> Any:
    return OpenAIChatModel(MODEL, provider=server.openai())


def _pydantic_responses(server: Server) -> Any:
    return OpenAIResponsesModel(MODEL, provider=server.openai())


def _pydantic_anthropic(server: Server) -> Any:
    return AnthropicModel(MODEL, provider=server.anthropic())


RUNS: dict[str, Run] = {
    "agents-chat": sdk(_sdk_chat),
    "agents-chat-streamed": sdk_streamed(_sdk_chat),
    "agents-responses": sdk(_sdk_responses),
    "agents-responses-streamed": sdk_streamed(_sdk_responses),
    "langchain-chat": chain(_chain_chat),
    "langchain-chat-streamed": chain_streamed(_chain_chat),
    "langchain-responses": chain(_chain_responses),
    "langchain-responses-streamed": chain_streamed(_chain_responses),
    "langchain-anthropic": chain(_chain_anthropic),
    "langchain-anthropic-streamed": chain_streamed(_chain_anthropic),
    "pydantic-chat": pydantic(_pydantic_chat),
    "pydantic-chat-streamed": pydantic_streamed(_pydantic_chat),
    "pydantic-responses": pydantic(_pydantic_responses),
    "pydantic-responses-streamed": pydantic_streamed(_pydantic_responses),
    "pydantic-anthropic": pydantic(_pydantic_anthropic),
    "pydantic-anthropic-streamed": pydantic_streamed(_pydantic_anthropic),
    "pydantic-chat-note": pydantic_note(_pydantic_chat),
    "pydantic-responses-note": pydantic_note(_pydantic_responses),
}


async def main(url: str, names: list[str]) -> None:
    print(json.dumps({name: await RUNS[name](Server(url)) for name in names}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
