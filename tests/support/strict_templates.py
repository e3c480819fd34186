"""Chat templates that demand what those of real models do: alternation, ids, one system message, none."""

_TURN = (
    "<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
)
_CALLS = (
    '{% for c in m.tool_calls or [] %}<tool_call>\n{"name": "{{ c.function.name }}", "arguments": '
    "{{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}"
)
_END = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
_TOOLS = "{% if tools %}{{ tools | tojson }}{% endif %}"
CHATML = _TOOLS + "{% for m in messages %}" + _TURN + _CALLS + "<|im_end|>\n{% endfor %}" + _END
"""Takes everything as it comes."""
FIRST_SYSTEM = (
    _TOOLS + "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "{% for m in messages %}{% if m.role != 'system' %}"
) + (_TURN + _CALLS + "<|im_end|>\n{% endif %}{% endfor %}" + _END)
"""Shows a first system message, and drops others without a word, as a dozen of real templates do."""
_ALTERNATES = """
{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}
{%- set ns = namespace(n=0) %}
{%- for m in rest %}
    {%- if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}
        {%- if (m.role == 'user') != (ns.n % 2 == 0) %}
            {{- raise_exception('roles must alternate') }}
        {%- endif %}
        {%- set ns.n = ns.n + 1 %}
    {%- endif %}
{%- endfor %}"""
ALTERNATING = (
    _TOOLS
    + _ALTERNATES
    + """
{%- if rest != messages %}[S]{{ messages[0].content }}[/S]{% endif %}
{%- for m in rest %}
    {%- if m.role == 'user' %}[INST]{{ m.content }}[/INST]
    {%- elif m.tool_calls %}
        {%- for c in m.tool_calls %}
            {%- if c.id | length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif -%}
            [TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}
        {%- endfor %}</s>
    {%- elif m.role == 'assistant' %}{{ m.content }}</s>
    {%- elif m.role == 'tool' %}[TOOL_RESULTS]{{ m.tool_call_id }}{{ m.content }}[/TOOL_RESULTS]
    {%- else %}{{ raise_exception('only user, assistant and tool') }}
    {%- endif %}
{%- endfor %}"""
)
"""As Mistral Small 3.2's: user and assistant alternate, apart from calls and results."""
GEMMA = """
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate') }}
    {%- endif -%}
    <start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<end_of_turn>\n
{%- endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"""
"""As Gemma 2's: no system messages, no tools, and strict alternation."""
TEMPLATES = {
    "chatml": CHATML,
    "first system": FIRST_SYSTEM,
    "alternating": ALTERNATING,
    "gemma": GEMMA,
}
