"""Templates may use all that transformers offers, at a known cost; the rest is refused."""

from __future__ import annotations

import random

import jinja2
import pytest
from fuzzing import ROUNDS, memory_limit
from jinja2.filters import FILTERS
from jinja2.tests import TESTS

from cortiq.errors import TokenizerError
from cortiq.tokenizer import render
from cortiq.tokenizer import template as page
from cortiq.tokenizer import template_costs as costs
from tests.fuzz import templates

MESSAGES = [{"role": "user", "content": "Héllo, <b>World</b> 12 http://a.example.org/x"},
            {"role": "assistant", "content": "b"}]  # fmt: skip
REFUSED = {"random", "lipsum"}
SAMPLES = """
[1, 2, 3, 4] | batch(3, 0) | list; [1, 2, 3, 4] | slice(3, 0) | list
'%s-%05.1f' | format('a', 2.5); 'a' | center(5); 2000000 | filesizeformat
2048 | filesizeformat(true); '<a>' | forceescape; {'b': [1], 'a': {'c': 'x' * 90}} | pprint
'<p>a <!-- c --> b</p>' | striptags; 'é &/' | urlencode; {'a': 'b c'} | urlencode
content | urlize(9, true, target='_blank'); 'aa bb cc dd' | wordwrap(5)
'aaaaaa' | wordwrap(2, wrapstring='|'); {'a': 1, 'b': none} | xmlattr
'abc' | attr('upper') is string; messages | groupby('role') | map('first') | list
messages | map(attribute='role') | sort | list
messages | sort(attribute='role', reverse=true) | map(attribute='content') | list; [3, 1] | max
messages | rejectattr('role', 'eq', 'user') | list | length
[1, 'x', 3.5] | select('number') | list; [1, 2] | sum
messages | sum(attribute='n', start=0) if false; [[1], [2]] | sum(start=[]); -3 | abs
'b' in 'abc'; 'x' not in {'y': 1}; 3 > 2 > 1; 3 is in [3]; 4 is divisibleby 2; 'A' is upper
1 is odd; '1,2'.split(','); 'a b'.title(); '7'.zfill(3); 'a'.ljust(3) ~ '|'; 'a'.rjust(3)
'a'.center(4) ~ '|'; 'a\\tb'.expandtabs(4); 'x-y-z'.rsplit('-', 1); 'x-y'.partition('-')
'abc'.rfind('c'); 'ß'.casefold(); 'abc'.removeprefix('a'); 'Ab'.swapcase(); 'a\\nb'.splitlines()
'{a[b]} {0!r:>6}'.format(1, a={'b': 2}); '{a}'.format_map({'a': 1}); ', '.join(['a', 'b'])
'%(a)s %%' % {'a': 1}; 'ab' * 2; [1] + [2]; 7 // 2; -7 % 3; 2 ** 10; 1.5 | round(1, 'floor')
1.25 | round(1); '3.7' | int; 'ff' | int(base=16); 'x' | int; '1.5' | float; {'a': 1}.get('b', 2)
{'b': 1, 'a': 2} | dictsort; {}.fromkeys([1], 2); (1, 2).index(2); [1, 2, 1].count(1)
(5).bit_length(); (2.0).is_integer(); range(9)[2:5] | list; range(3).stop
[1, 1, 2] | unique | list; 'abc' | reverse; [1, 2] | reverse | list; 'abc' | first; 'abc' | last
'a b c' | truncate(4, true); 'hello world' | truncate(8); 'x y' | wordcount; 'ab' | list
none | d('x', true); 'A\\nB' | indent(3, true); 'A\\nB' | indent('> '); '  a ' | trim
'xax' | trim('x'); 'aab' | replace('a', 'b', 1); {'a': [1, {'b': 'é'}]} | tojson(indent=2)
[1, 2] | tojson(separators=(',', ':')); 'b' | e; '<' | safe
{'b': 1, 'a': 2} | tojson(sort_keys=true); 'é' | tojson(ensure_ascii=true)
{'a': 1}.items() | list; cycler('a', 'b').next(); joiner(', ')() ~ 'x'; dict(a=1)
namespace(a=1).a; strftime_now('%%'); 1 == 1.0; 'abc'[::-1]; [1, 2, 3][-2:]; messages[-1].role
messages | items if false; {'a': 1} | items | list
messages | selectattr('tool_calls', 'undefined') | list | length; 'x' is filter; 'upper' is filter
none is none; [] is sequence; {} is mapping; true is boolean; 1.0 is float; 'a' is sameas 'a'
1 is eq 1
"""
BLOCKS = [
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ loop.cycle('a', 'b') }}"
    "{{ loop.changed(m.role) }}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
    "{% autoescape true %}{% set a = '<' %}{{ '<b>' | safe }}{{ a }}{{ a | safe ~ a ~ 1 }}"
    "{% endautoescape %}",
    "{% block a %}x{% endblock %}{{ self.a() }}",
    "{% filter upper | replace('A', 'b') %}a{% endfilter %}",
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{{ caller() if caller }}"
    "{% endmacro %}{{ f(1, 2, 3, c=4) }}{% call f(0) %}inside{% endcall %}{{ f.name }}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{% set c | upper %}x{{ 1 }}{% endset %}{{ c }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i == 5 %}{% break %}{% endif %}"
    "{{ i }}{% endfor %}{% generation %} made {% endgeneration %}{# comment #}",
    "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}",
    "{% for g in messages | groupby('role') %}{{ g.grouper }}{{ g.list[0].content }}{% endfor %}",
]  # fmt: skip
EXPRESSIONS = [part.strip() for part in SAMPLES.replace("\n", ";").split(";") if part.strip()]


@pytest.fixture(scope="module")
def environment():
    """The environment that transformers renders chat templates in."""
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    return utils._compile_jinja_template("").environment


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_is_what_transformers_makes_of_it(environment, expression):
    source = "{% set content = messages[0].content %}{{ " + expression + " }}"
    assert render(source, MESSAGES) == environment.from_string(source).render(messages=MESSAGES)


@pytest.mark.parametrize("source", BLOCKS)
def test_a_block_is_what_transformers_makes_of_it(environment, source):
    assert render(source, MESSAGES) == environment.from_string(source).render(messages=MESSAGES)


def test_every_filter_and_test_is_offered_or_refused(environment):
    text = "\n".join([*EXPRESSIONS, *BLOCKS])
    for name in environment.filters:
        assert name in costs.FILTERS or name in REFUSED
        assert name in REFUSED or f"| {name}" in text or name in ("count", "default", "length",
            "capitalize", "escape", "lower", "upper", "string", "title", "join", "reject", "min",
            "selectattr", "list", "select", "round")  # fmt: skip
    assert set(environment.tests) == set(costs.TESTS)
    assert set(environment.globals) - REFUSED <= set(page._environment(None, None).globals)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_differs_each_time_is_refused(name):
    for source in (f"{{{{ [1] | {name} }}}}", f"{{{{ {name}() }}}}"):
        with pytest.raises(TokenizerError):
            render(source, MESSAGES)


VALUES = {"'a'": "a", "{'k': 1}": {"k": 1}, "[1]": [1], "(1,)": (1,), "7": 7, "1.5": 1.5,
          "range(3)": range(3)}  # fmt: skip


@pytest.mark.parametrize("value", VALUES)
def test_every_attribute_of_a_value_is_offered_or_refused_aloud(environment, value):
    """Never printed as nothing where transformers prints something."""
    for name in dir(VALUES[value]):
        source = f"{{{{ ({value}).{name} is callable }}}}"
        allowed = environment.is_safe_attribute(VALUES[value], name, getattr(VALUES[value], name))
        try:
            made = render(source, MESSAGES)
        except TokenizerError as error:
            assert "is not offered" in str(error)
        else:
            assert allowed and made == environment.from_string(source).render()


OPERANDS = [
    "messages[0].content", "'a b' * 9999", "[1] * 9999", "range(99999)", "[[1, [2]]] * 3000",
    "10 ** 300", "{'a': 'x' * 9999}", "{'a': 'x' * 9999}.items()", "('()' * 9999)", "1.5",
    "('\t<a>\n' * 5000)", "(['x' * 99] * 99)",
]  # fmt: skip
GIVEN = [
    "", "(10 ** 15)", "(-10 ** 15)", "('x' * 9999)", "('a', 'x' * 9999)", "('', 'x' * 9999)",
    "(10 ** 9, 'x' * 999)", "([1] * 9999)", "(['x' * 9] * 999)", "('x' * 999, 10 ** 9)",
    "(1, 1, 'y' * 9999)",
    "(attribute='a.' * 9999)", "(width=10 ** 12)", "('string')", "('center', 10 ** 7)",
    "('join', 'x' * 9999)", "(start=[])", "(base=16)", "(10 ** 9, 'ceil')", "(indent=10 ** 9)",
    "(1, true, 'y' * 9999)", "(d='x' * 9999)", "(attribute='a', default='x' * 9999)",
]  # fmt: skip


def refusals(sources, units=3000):
    """Return the verdict of small budgets on each source, in little memory."""
    made = []
    with pytest.MonkeyPatch.context() as patch, memory_limit(96):
        patch.setattr(page, "BASE_UNITS", units)
        patch.setattr(page, "UNITS_PER_INPUT_UNIT", 1)
        for source in sources:
            try:
                made.append(render(source, MESSAGES)[:99])
            except TokenizerError as error:
                made.append(str(error))
    return made


def sweep(kind):
    """Every filter, test, method, operator or function with large values and arguments."""
    if kind == "filters":
        return [f"{{{{ (({v}) | {name}{g}) | list | length }}}}" if name in LAZY else
                f"{{{{ ({v}) | {name}{g} }}}}"
                for name in FILTERS for v in OPERANDS for g in GIVEN]  # fmt: skip
    if kind == "tests":
        return [f"{{{{ ({v}) is {name}{g} }}}}" for name in TESTS if name.isalpha()
                for v in OPERANDS for g in GIVEN[:8]]  # fmt: skip
    if kind == "methods":
        return [f"{{{{ ({v}).{name}{g or '()'} }}}}"
                for k, names in costs.METHODS.items() for name in [*names, "format", "translate"]
                for v in OPERANDS if k in (str, list, dict, int) for g in GIVEN[:11]]  # fmt: skip
    if kind == "operators":
        return [f"{{{{ ({v}) {name} ({w}) }}}}" for name in templates.OPERATORS
                for v in [*OPERANDS, "'%s' * 999", "'%(a)s' * 999"]
                for w in [*OPERANDS, "10 ** 12"]]  # fmt: skip
    return [f"{{{{ {name}{g or '()'} }}}}" for name in templates.GLOBALS for g in
            [*GIVEN, *(f"({v})" for v in OPERANDS)]]  # fmt: skip


LAZY = {"batch", "items", "map", "reject", "rejectattr", "select", "selectattr", "slice", "unique"}


@pytest.mark.parametrize("kind", ["filters", "tests", "methods", "operators", "functions"])
def test_nothing_makes_much_of_little(kind):
    sources = sweep(kind)
    made = refusals(random.Random(1).sample(sources, min(len(sources), ROUNDS // 20)))
    assert not [text for text in made if "MemoryError" in text]
    assert sum("too many steps" in text for text in made) > 1


@pytest.mark.parametrize(
    ("table", "name", "source"),
    [("FILTERS", "center", "{{ 'x' | center(10 ** 9) }}"),
     ("FILTERS", "batch", "{{ [1] | batch(10 ** 8, 'x') | list }}"),
     ("METHODS", "ljust", "{{ 'x'.ljust(10 ** 9) }}")],
)  # fmt: skip
def test_a_step_that_was_not_paid_would_be_seen(monkeypatch, table, name, source):
    """The sweep's own eyes: without its cost the same step runs out of memory."""
    assert "MemoryError" not in refusals([source])[0]
    costs_of = getattr(costs, table)
    monkeypatch.setitem(costs_of[str] if table == "METHODS" else costs_of, name, costs._free)
    assert "MemoryError" in refusals([source])[0]


def test_random_templates_render_or_are_refused():
    draw, made = random.Random(3), set()
    with memory_limit(templates.MEBIBYTES):
        for _ in range(max(15, ROUNDS // 120)):
            made.add(templates.attempt(templates.template(draw)).partition(": ")[0])
            assert "MemoryError" not in made
    assert "TokenizerError" in made and len(made) > 1


def test_what_a_long_conversation_needs_is_linear():
    """Loops that look at every message, compare, slice and filter are paid by what they read."""
    source = (
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}{% endif %}"
        "{% if 'tool_calls' in m and m == messages[-1] %}{% endif %}{{ m.content | trim }}"
        "{{ (messages | length) - loop.index0 }}{{ messages[loop.index0 - 1].role }}"
        "{% if m is sameas (messages | last) %}{% endif %}{% endfor %}{{ messages[1:] | length }}"
    )
    messages = [{"role": "user", "content": "word " * 400}] * 1000
    assert len(render(source, messages)) > 1_900_000


def test_jinja_itself_has_nothing_that_has_no_cost():
    assert set(jinja2.filters.FILTERS) - REFUSED == set(costs.FILTERS)
