"""LangGraph with LangChain's client: a graph whose model answers twice, with a function in between."""

import json
import os
import sys

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

row = json.loads(sys.stdin.readline())
model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], max_tokens=16, temperature=1.0, max_retries=0)


def answer(state: MessagesState) -> dict:
    return {"messages": [model.invoke(state["messages"])]}


def doubt(_: MessagesState) -> dict:
    return {"messages": [HumanMessage("Sure?")]}


graph = StateGraph(MessagesState)
graph.add_node("answer", answer)
graph.add_node("doubt", doubt)
graph.add_node("second", answer)
graph.add_edge(START, "answer")
graph.add_edge("answer", "doubt")
graph.add_edge("doubt", "second")
graph.add_edge("second", END)
done = graph.compile().invoke({"messages": [("system", "Be brief."), ("user", row["task"])]})
print(json.dumps({"length": len(done["messages"][-1].content)}))
