"""Chat templates render as transformers renders them, and cannot escape, hang or fill memory."""

from __future__ import annotations

import datetime
import json

import pytest
from fuzzing import memory_limit

from cortiq.errors import TokenizerError
from cortiq.tokenizer import render

CHATML = """\
{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}
        {{- '<|im_start|>system\nYou are helpful.<|im_end|>\n' }}
    {%- endif %}
    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
"""

INST = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {% endif %}
    {% if message['role'] == 'user' %}
        {% if loop.index0 == 0 and system_message is not false %}
            {% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message['content'] %}
        {% else %}{% set content = message['content'] %}{% endif %}
        {{ '[INST] ' ~ content | trim ~ ' [/INST]' }}
    {% elif message['role'] == 'assistant' %}
        {% generation %}{{ ' ' + message['content'] | trim + ' ' + eos_token }}{% endgeneration %}
    {% endif %}
{% endfor %}
"""

TOOLS = """\
{%- set ns = namespace(count=0, last=-1) %}
{%- macro parts(value) %}
    {%- if value is string %}{{ value }}{%- else %}
        {%- for item in value if item.type == 'text' %}{{ item.text }}{% endfor %}
    {%- endif %}
{%- endmacro %}
{%- if tools %}
# Tools
{%- for tool in tools %}
{{ loop.index }}/{{ loop.length }}: {{ tool | tojson }}
{{ tool.function.parameters | tojson(indent=2) }}
{%- endfor %}
{% endif %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last < 0 and message.role == "user" %}{% set ns.last = index %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set ns.count = ns.count + 1 %}
    {%- if message.role == 'skip' %}{% continue %}{% endif %}
<{{ message.role | upper }} {{ ns.count }}{{ ' last' if loop.index0 == ns.last }}>
{{- parts(message.content) if message.content }}
    {%- for call in message.tool_calls or [] %}
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
    {%- endfor %}
    {%- if message.reasoning_content is defined %} why: {{ message.reasoning_content }}{% endif %}
{%- endfor %}
{{ messages | map(attribute='role') | unique | list | join(',') }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}
{%- if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{{ {'b': 1, 'a': [none, true, 'é<&>']} | tojson }} {{ dict(x=1).items() | list }}
"""

STRINGS = """\
{% for m in messages %}{% set c = m.content if m.content is string else '' %}
{{ c.split(' ')[-1] }}|{{ c.strip().startswith('H') }}|{{ c.replace('l', 'L') }}|{{ c[:3] }}
{{ '%s-%d' % (c, 3) }}|{{ '{}:{:.2f}'.format(c, 1.5) }}|{{ c | indent(2, true) }}|{{ [1, 2] + [3] }}
{{ ('a', 'b') | join('-') }}|{{ c | replace('o', '0') | title }}|{{ 7 // 2 * 2 ** 3 % 5 }}
{% filter upper %}{{ m.role }}{% endfilter %}{% set block %}<{{ c }}>{% endset %}{{ block }}
{%- call(x) wrapper() %}{{ x }}{% endcall %}{% endfor %}
"""
STRINGS = "{% macro wrapper() %}[{{ caller(1) }}]{% endmacro %}" + STRINGS

PLAIN = [
    {"role": "user", "content": "Hello, world"},
    {"role": "assistant", "content": " Hi there "},
    {"role": "user", "content": "2+2?\n\nThanks"},
]
SYSTEM = [{"role": "system", "content": "Be terse."}, *PLAIN]
RICH = [
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}, {"type": "image"}]},
    {"role": "skip", "content": "nothing"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "look it up",
        "tool_calls": [{"function": {"name": "get", "arguments": {"city": "Zürich", "n": 1.5}}}],
    },
    {"role": "tool", "content": "sunny"},
]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


@pytest.fixture(scope="module")
def transformers_render():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")

    def run(template, messages, *, tools=None, **variables):
        rendered, _ = utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, **variables
        )
        return rendered[0]

    return run


@pytest.mark.parametrize("messages", [PLAIN, SYSTEM], ids=["plain", "system"])
@pytest.mark.parametrize("template", [CHATML, INST, STRINGS], ids=["chatml", "inst", "strings"])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers(transformers_render, template, messages, prompt):
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    ours = render(template, messages, add_generation_prompt=prompt, **tokens)
    assert ours == transformers_render(template, messages, add_generation_prompt=prompt, **tokens)


@pytest.mark.parametrize("tools", [None, [WEATHER], [WEATHER, WEATHER]])
@pytest.mark.parametrize("options", [{}, {"enable_thinking": False}, {"enable_thinking": True}])
def test_renders_tools_and_options_as_transformers(transformers_render, tools, options):
    ours = render(TOOLS, RICH, tools=tools, options=options)
    theirs = transformers_render(TOOLS, RICH, tools=tools, add_generation_prompt=True, **options)
    assert ours == theirs


def test_keys_that_are_none_are_left_out():
    template = "{{ messages[0].content is defined }}"
    assert render(template, [{"role": "user", "content": None}]) == "False"


def test_the_clock_can_be_fixed():
    moment = datetime.datetime(2024, 7, 26)
    assert render("{{ strftime_now('%d %b %Y') }}", PLAIN, now=moment) == "26 Jul 2024"


def test_tojson_keeps_order_and_does_not_escape_for_html():
    value = {"b": "<é>", "a": [1.0, None]}
    text = render("{{ messages[0].content | tojson }}", [{"role": "user", "content": value}])
    assert text == json.dumps(value, ensure_ascii=False)


def test_rendering_leaves_the_messages_alone():
    before = json.dumps(RICH)
    render(TOOLS, RICH, tools=[WEATHER])
    assert json.dumps(RICH) == before


ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__ }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update(x=1) }}",
    "{{ (1).to_bytes(4, 'big') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ [''] | map(attribute='__class__') | list }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__closure__ }}",
    "{{ dict.mro() }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ lipsum.__globals__ }}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% for x in [1] %}{{ loop._iterator }}{% endfor %}",
    "{% include 'other' %}",
    "{% import 'other' as other %}",
    "{% extends 'other' %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_the_sandbox_holds(template):
    try:
        text = render(template, PLAIN)
    except TokenizerError as error:
        assert "chat template" in str(error)
    else:
        assert text == "[Undefined]"  # the sandbox never looks at it


BOMBS = [
    "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "{% for i in range(100000) recursive %}{{ loop(range(100000)) }}{% endfor %}",
    "{{ range(10000000) | list }}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}",
    "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{% for i in range(99999) %}" + "z" * 100_000 + "{% endfor %}",
    "{% set t %}{% for i in range(99999) %}" + "z" * 100_000 + "{% endfor %}{% endset %}",
    "{% set z = 'z' * 100000 %}{% for i in range(99999) %}{{ z }}{% endfor %}",
    "{{ 'a' * 1000000000 }}",
    "{{ 1000000000 * [1] }}",
    "{{ [[1] * 99999] * 99999 }}",
    "{{ 9 ** 999999999 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ '{:{}}'.format(1, 1000000000) }}",
    "{{ 'x'.ljust(1000000000) }}",
    "{{ 'x' | center(1000000000) }}",
    "{{ 'x' | indent(1000000000) }}",
    "{{ [1] | tojson(indent=1000000000) }}",
    "{{ range(99999) | join('x' * 99999) }}",
    "{{ range(99999) | join(d='x' * 99999) }}",
    "{{ ('x' * 99999).join(range(99999) | map('string') | list) }}",
    "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "{{ ('x' * 99999) | replace(old='x', new='y' * 99999) }}",
    "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "{{ ('f' * 9999999) | int(base=16) % 3 }}",
    "{% set n = ('f' * 9999999) | int(base=16) %}{{ n // 3 }}",
    "{{ 1.5 | round(99999999, 'ceil') }}",
    "{{ '%(a)s' * 99999 % {'a': 'x' * 9999} }}",
    "{{ ('{0}' * 99999).format('x' * 9999) }}",
    "{{ ('{a}' * 99999).format_map({'a': 'x' * 9999}) }}",
    "{{ 'x'.zfill(999999999) }}",
    "{{ 'x'.center(999999999) }}",
    "{{ ('\t' * 99999).expandtabs(99999) }}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ [1] | slice(999999999) | list }}",
    "{{ range(99999) | map('center', 99999) | list }}",
    "{{ range(99999) | map('center', 99999) | join }}",
    "{{ range(99999) | map(attribute='a.' * 99999) | list }}",
    "{{ ('a' * 9999999) | map(attribute='x') | list }}",
    "{{ ('aX' * 7999999).split('X') }}",
    "{{ ('a' * 999999).rfind('b' + 'a' * 499999) }}",
    "{{ ('a' * 999999).strip('b' * 999999 + 'a') }}",
    "{{ ([[1]] * 99999) | sum(start=[]) }}",
    "{{ ('(' * 99999 ~ 'a.com' ~ ')' * 99999) | urlize }}",
    "{{ ('<a>' * 199999) | striptags }}",
    "{{ ('a' * 99999) | wordwrap(1, wrapstring='x' * 99999) }}",
    "{% set d = {'a': 'x' * 99999} %}{{ [d.items()] * 99999 }}",
    "{% set d = dict(messages[0]) %}{% for i in range(99999) %}{% for j in range(99) %}"
    "{% set n = namespace(d) %}{% endfor %}{% endfor %}",
    "{% set n = namespace(t=()) %}{% for i in range(60) %}{% set n.t = (n.t, n.t) %}{% endfor %}"
    "{{ {}[n.t] }}",
    "{% set n = namespace(t=()) %}{% macro f() %}{% set n.t = varargs %}{% endmacro %}"
    "{% for i in range(60) %}{{ f(n.t, n.t) }}{% endfor %}{{ n.t | string }}",
    "{% macro " + "f" * 99999 + "() %}{% endmacro %}{{ [" + "f" * 99999 + "] * 99999 }}",
    "{% set s = 'x' * 9999999 %}" + "{% set a = s[1:] %}{% set a = [a] %}" * 999,
    "{% for x in 'a' * 9999999 if false %}{% endfor %}",
    "{{ strftime_now('%c' * 9999999) }}",
    "{{ ('x' * 9999).translate({120: 'y' * 9999}) }}",
    "{{ ['x'] | tojson(indent=['x' * 9] * 99999) }}",
    "{{ ('\t' * 99999).expandtabs('x' * 99999) }}",
    "{{ 'x' | batch('y' * 99999, 'z' * 99999) | list }}",
    "x" * 1_000_000,
]


@pytest.mark.parametrize("template", BOMBS, ids=lambda template: template[:50])
def test_no_template_hangs_or_fills_memory(monkeypatch, template):
    monkeypatch.setattr("cortiq.tokenizer.template.BASE_UNITS", 100_000)
    with memory_limit(256), pytest.raises(TokenizerError) as caught:
        render(template, PLAIN)
    assert "MemoryError" not in str(caught.value)


def test_a_long_conversation_is_not_stopped():
    messages = [{"role": "user", "content": "word " * 2000}] * 2000
    assert len(render(CHATML, messages)) > 2000 * 10_000


@pytest.mark.parametrize(
    ("template", "line", "words"),
    [
        ("a\nb\n{% if %}", 3, "Expected an expression"),
        ("a\n{{ raise_exception('Roles must alternate') }}", 2, "Roles must alternate"),
        ("\n\n{{ nothing.here.at_all }}", 3, "undefined"),
        ("\n{% macro f() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ f() }}", 3, "division"),
        ("{{ 'a' | no_such_filter }}", 1, "no_such_filter"),
    ],
)
def test_errors_name_the_line(template, line, words):
    with pytest.raises(TokenizerError, match=words) as caught:
        render(template, PLAIN)
    assert caught.value.where == f"chat template, line {line}"


def test_what_is_not_json_is_refused():
    with pytest.raises(TokenizerError, match="object"):
        render(CHATML, [{"role": "user", "content": object()}])
    with pytest.raises(TokenizerError, match="mapping"):
        render(CHATML, ["hello"])
    with pytest.raises(TokenizerError, match="messages"):
        render(CHATML, PLAIN, options={"messages": []})
