"""One page about a what-if, for a reader who decides about money: a self-contained HTML file.

It has no script and no outside file. The style sheet draws the bars; light and dark follow the reader's system. Every
text from a manifest is escaped.
"""

from collections.abc import Sequence
from html import escape
from typing import Final

from partage.model.quantity import brief
from partage.sim.whatif import Kind, Result

_KINDS: Final = 12
"""The most kinds of request on the page; the rarer ones would need a second page."""
_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --bar: #2f6fde; --rest: #8883; --warn: #b4540a; }
@media (prefers-color-scheme: dark) { :root { --bar: #7aa7ff; --warn: #ffb066; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
.lead { font-size: 1.15rem; } .small { font-size: .85rem; opacity: .8; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; padding: .3rem 0; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line); }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.b { white-space: nowrap; }
.bar { display: inline-block; width: 5rem; height: .7rem; background: var(--rest);
  border-radius: 2px; overflow: hidden; vertical-align: baseline; margin-right: .5rem; }
.bar i { display: block; height: 100%; background: var(--bar); }
.waits { color: var(--warn); } .scroll { overflow-x: auto; }
@media print { body { margin: 0; } .bar { print-color-adjust: exact; } }
"""


def verdict(results: Sequence[Result]) -> str:
    """The outcome in two sentences: the gain of the first change against today."""
    today, *others = results
    first = (
        f"Today {_many(today.running, 'pod')} of {today.pods} run on {_many(today.cards, 'card')},"
        f" and {today.idle or 'none'} of these {'is' if today.idle == 1 else 'are'} idle."
    )
    if not others:
        return first
    best = max(others, key=lambda result: (result.running, result.idle))
    more, idle = best.running - today.running, best.idle - today.idle
    parts = []
    if more:
        parts.append(f"{_many(abs(more), 'pod')} {'more' if more > 0 else 'fewer'} would run")
    if idle:
        parts.append(f"{_many(abs(idle), 'card')} {'more' if idle > 0 else 'fewer'} would be idle")
    told = " and ".join(parts) if parts else "as many pods would run on as many cards"
    bare = best.name.startswith(("without ", "placed "))
    case = best.name if bare else f"with {best.name}"
    return f"{first} {case[0].upper()}{case[1:]}, {told}."


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def page(results: Sequence[Result], source: str) -> str:
    """The page as HTML.

    `results`: today first, then the changes. `source`: the origin of the cluster's data, for the small print.
    """
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>What if: {escape(", ".join(result.name for result in results[1:]) or "today")}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>What if</h1>
<p class="lead">{escape(verdict(results))}</p>
{_overview(results)}
{_waits(results)}
{_room(results)}
{_models(results)}
<p class="small">From {escape(source)}. Every placement was decided by the engine that schedules
live, pod by pod, by priority. Compute and memory are what is allocated, not what programs use.
How many more would fit is counted for each kind alone, after all others have their place.</p>
</main>
</body>
</html>
"""


def _overview(results: Sequence[Result]) -> str:
    rows = "".join(
        f"<tr><th scope=row>{escape(r.name)}</th><td>{escape(r.policy)}</td>"
        f"<td class=n>{r.nodes}</td><td class=n>{r.cards}{_closed(r.closed)}</td>"
        f"<td class=n>{r.running}&nbsp;of&nbsp;{r.pods}</td>"
        f"<td class=n>{_warned(sum(r.waiting.values()))}</td>"
        f"<td class=b>{_bar(r.core_share)}</td><td class=b>{_bar(r.memory_share)}</td>"
        f"<td class=n>{r.idle}</td><td class=n>{r.shared}</td></tr>"
        for r in results
    )
    head = (
        "<thead><tr><th scope=col>Case</th><th scope=col>Policy</th>"
        "<th scope=col class=n>Nodes</th><th scope=col class=n>Cards</th>"
        "<th scope=col class=n>Pods running</th><th scope=col class=n>Waiting</th>"
        "<th scope=col>Compute allocated</th><th scope=col>Memory allocated</th>"
        "<th scope=col class=n>Idle cards</th><th scope=col class=n>Shared cards</th></tr></thead>"
    )
    return _table("At a glance", head, rows)


def _table(title: str, head: str, rows: str) -> str:
    table = f"<table>{head}<tbody>{rows}</tbody></table>"
    return f"<h2>{title}</h2><div class=scroll>{table}</div>"


def _closed(count: int) -> str:
    return f"<br><span class='waits small'>{count}&nbsp;closed</span>" if count else ""


def _warned(count: int) -> str:
    return f"<span class=waits>{count}</span>" if count else "0"


def _bar(share: float) -> str:
    percent = f"{100 * share:.1f}"
    return f'<span class=bar><i style="width:{percent}%"></i></span>{percent}&nbsp;%'


def _heads(first: str, results: Sequence[Result], last: str = "") -> str:
    cases = "".join(f"<th scope=col class=n>{escape(r.name)}</th>" for r in results)
    ending = f"<th scope=col>{last}</th>" if last else ""
    return f"<thead><tr><th scope=col>{first}</th>{cases}{ending}</tr></thead>"


def _cells(texts: Sequence[str]) -> str:
    return "".join(f"<td class=n>{text}</td>" for text in texts)


def _waits(results: Sequence[Result]) -> str:
    codes = list(dict.fromkeys(code for r in results for code in r.waiting))
    if not codes:
        return "<h2>Pending pods</h2><p>None.</p>"
    rows = ""
    for code in codes:
        pod, message = next(r.examples[code] for r in results if code in r.examples)
        counts = _cells([_warned(r.waiting.get(code, 0)) for r in results])
        rows += (
            f"<tr><th scope=row>{escape(code)}</th>{counts}"
            f"<td class=small>{escape(pod)}: {escape(message)}</td></tr>"
        )
    head = _heads("Pods that wait for", results, "For example")
    return _table("Pending pods", head, rows)


def _room(results: Sequence[Result]) -> str:
    kinds = [{kind.asks: kind for kind in r.kinds} for r in results]
    asked = list(dict.fromkeys(asks for by_ask in kinds for asks in by_ask))
    if not asked:
        return ""
    rows = "".join(
        f"<tr><th scope=row>{escape(asks)}</th>"
        + _cells([_more(by_ask.get(asks)) for by_ask in kinds])
        + "</tr>"
        for asks in asked[:_KINDS]
    )
    left = len(asked) - _KINDS
    note = f"<p class=small>And {left} rarer kinds of request.</p>" if left > 0 else ""
    return _table("How many more would fit", _heads("Pods that ask for", results), rows) + note


def _more(kind: Kind | None) -> str:
    if kind is None:
        return "-"
    return f"{kind.more}{' or more' if kind.bounded else ''}"


def _models(results: Sequence[Result]) -> str:
    models = sorted({model for r in results for model in r.models})
    rows = "".join(
        f"<tr><th scope=row>{escape(model)}</th>"
        + _cells([_idle(r.models.get(model)) for r in results])
        + "</tr>"
        for model in models
    )
    memory = _cells([brief(r.memory_total) for r in results])
    rows += f"<tr><th scope=row>Memory of all open cards</th>{memory}</tr>"
    head = _heads("Open cards, idle ones in brackets", results)
    return _table("Cards", head, rows)


def _idle(counts: tuple[int, int] | None) -> str:
    return f"{counts[0]} ({counts[1]})" if counts else "-"
