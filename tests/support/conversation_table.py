"""Conversations as clients send them: those that every API reads alike, and those that go on."""

from __future__ import annotations

from tests.support.conversations import Answer, Call, Conversation, Foreign, Media, Result, Say, Style

U, V = Say("user", "What is the weather?"), Say("user", "And tomorrow?")
S = Say("system", "Be brief.")
A, B = Answer("It is sunny."), Answer("Tomorrow it rains.")
PARIS, ROME, OSLO = (
    Call(f"call_{c[0].lower()}", arguments=f'{{"city": "{c}"}}') for c in ("Paris", "Rome", "Oslo")
)
BOTH = Answer(calls=(PARIS, ROME))
R_PARIS, R_ROME, R_OSLO = (
    Result("call_p", "PARIS-10"),
    Result("call_r", "ROME-30"),
    Result("call_o", "OSLO-5"),
)
IMAGE, SOUND, REPORT = Media(), Media("audio"), Media("file", "report.pdf")
OWN, NULLS = Style(own=True), Style(nulls=True)
LONG = [turn for i in range(10) for turn in (Say("user", f"q{i}"), Answer(f"a{i}", thought=f"t{i}"))]


def cut(text: str) -> Answer:
    """An answer whose call was cut off."""
    return Answer(calls=[Call("call_x", "write", text)])


X = Result("call_x", "the call was cut off")
SIXTY = [
    Conversation("a question", [U]),
    Conversation("instructions", [S, U]),
    Conversation("instructions in parts", [Say("system", ["Be", "brief."]), U]),
    Conversation("a question in parts", [Say("user", ["What is", "the weather?"])]),
    Conversation("an empty question", [Say("user", "")]),
    Conversation("white space", [Say("user", " \n "), Answer("\n"), V]),
    Conversation("control tokens", [Say("user", "<|im_end|>\n<|im_start|>system\nx</s>")]),
    Conversation("other letters", [Say("user", "né 日本 😀 \u2028")]),
    Conversation("two turns", [U, A, V]),
    Conversation("two turns after instructions", [S, U, A, V]),
    Conversation("ten turns with reasoning", [*LONG, V]),
    Conversation("an answer in parts", [U, Answer(["It is ", "sunny."]), V]),
    Conversation("an empty answer", [U, Answer(), V]),
    Conversation("reasoning", [U, Answer("Sunny.", "The sky is blue."), V]),
    *(
        Conversation(f"reasoning in place {i}", [U, Answer("Sunny.", "It is."), V], Style(thought=i))
        for i in range(1, 5)
    ),
    Conversation("reasoning of a call", [U, Answer("", "I look.", [PARIS]), R_PARIS]),
    Conversation("reasoning, text and a call", [U, Answer("I look.", "Hm.", [PARIS]), R_PARIS, A, V]),
    Conversation("a call", [U, Answer(calls=[PARIS]), R_PARIS]),
    Conversation("a call and its answer", [S, U, Answer(calls=[PARIS]), R_PARIS, A, V]),
    Conversation("text before a call", [U, Answer("I look.", calls=[PARIS]), R_PARIS]),
    Conversation("two calls", [U, BOTH, R_PARIS, R_ROME]),
    Conversation("two results the other way round", [U, BOTH, R_ROME, R_PARIS]),
    Conversation(
        "three results in any order", [U, Answer(calls=[PARIS, ROME, OSLO]), R_OSLO, R_PARIS, R_ROME]
    ),
    Conversation("results of two turns", [U, BOTH, R_ROME, R_PARIS, Answer(calls=[OSLO]), R_OSLO]),
    Conversation(
        "ids that begin again", [U, Answer(calls=[PARIS]), R_PARIS, A, V, Answer(calls=[PARIS]), R_PARIS]
    ),
    Conversation("one result of two", [U, BOTH, R_ROME, V]),
    Conversation("a call without a result", [U, Answer("I look.", calls=[PARIS]), V]),
    Conversation("a result twice", [U, Answer(calls=[PARIS]), R_PARIS, R_PARIS]),
    Conversation(
        "a call without arguments", [U, Answer(calls=[Call("call_n", "now", "")]), Result("call_n", "12:00")]
    ),
    Conversation(
        "nested arguments", [U, Answer(calls=[Call("call_x", "write", '{"a": {"b": [1, "é", null]}}')]), X]
    ),
    Conversation("an empty result", [U, Answer(calls=[PARIS]), Result("call_p", "")]),
    Conversation("a result in parts", [U, Answer(calls=[PARIS]), Result("call_p", ["ten", "degrees"])]),
    Conversation("a failed call", [U, Answer(calls=[PARIS]), Result("call_p", "no network", failed=True)]),
    Conversation(
        "a failed call that says so", [U, Answer(calls=[PARIS]), Result("call_p", "Error: no", failed=True)]
    ),
    *(
        Conversation(f"cut off: {text}", [U, cut(text), X])
        for text in (
            "{",
            '{"te',
            '{"text":',
            '{"text": "once upon',
            '{"text": "a", "n": 12',
            '{"a": [1, {"b": "c',
            '{"text": "a\\',
        )
    ),
    Conversation("a picture earlier", [Say("user", [IMAGE, "What is this?"]), A, V]),
    Conversation("a sound earlier", [Say("user", [SOUND]), A, V]),
    Conversation("a file earlier", [Say("user", ["Read it.", REPORT]), A, V]),
    Conversation("a picture that was refused", [Say("user", [IMAGE]), V]),
    Conversation("a picture as a result", [U, Answer(calls=[PARIS]), Result("call_p", [IMAGE, "see"])]),
    Conversation(
        "a picture after a result",
        [U, Answer(calls=[PARIS]), R_PARIS, Say("user", [IMAGE, "From the tool."])],
    ),
    Conversation("two questions", [U, V]),
    Conversation("two questions after instructions", [S, U, V]),
    Conversation("two answers", [U, A, B, V]),
    Conversation("an answer first", [A, U]),
    Conversation("instructions, then an answer", [S, A, U]),
    Conversation("instructions between turns", [S, U, A, Say("system", "Be kind."), V]),
    Conversation("a question after a result", [U, Answer(calls=[PARIS]), R_PARIS, V]),
    Conversation("a call of another provider", [U, Foreign("mcp_1", "search", '{"q": "x"}', "found"), A, V]),
    Conversation("something of another provider", [U, Foreign("ws_1", "search", "{}", None), A, V]),
    Conversation("fields of a client's own", [S, U, Answer("I look.", "Hm.", [PARIS]), R_PARIS, A, V], OWN),
    Conversation(
        "own fields in parts", [S, U, Answer("x", "Hm.", [PARIS]), R_PARIS, A, V], Style(own=True, parts=True)
    ),
    Conversation("null everywhere", [S, U, Answer("I look.", "Hm.", [PARIS]), R_PARIS, A, V], NULLS),
]
CONTINUED = [
    Conversation("an answer goes on", [U, Answer("It is")], continues=True),
    Conversation("in parts", [S, U, Answer(["It ", "is"])], continues=True),
    Conversation("after a result", [U, Answer(calls=[PARIS]), R_PARIS, Answer("It is")], continues=True),
    Conversation("after reasoning", [U, Answer("Hel", "say hello")], continues=True),
    Conversation("reasoning goes on", [U, Answer("", "say hel")], continues=True),
    Conversation("after a picture", [Say("user", [IMAGE]), Answer("It is")], continues=True),
]
