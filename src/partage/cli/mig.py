"""`partage simulate mig`: requests for instances, under the engine's policy and its baselines."""

from pathlib import Path
from typing import Any, Final

import click
import msgspec

from partage.cli.ending import end
from partage.cli.parameters import Sectioned, Whole, flag, option, options, output_option
from partage.cli.structured import structured
from partage.cli.tables import PlainTable, paper
from partage.model.errors import UNREADABLE, InvalidDocument, InvalidValue, PartageError
from partage.model.mig import MigAxis
from partage.sim.migcards import POLICIES
from partage.sim.migstream import Stream, offer, run
from partage.vendors.mig import MIG_CARDS, find_card, find_profile
from partage.wire.documents import read_file

_SIZES: Final = (1, 2, 3, 4, 7)
_MOST_BYTES: Final = 2**26
_POLICIES: Final = "\n".join(f"  {name:<19}{text}" for name, text in POLICIES.items())
_HELP: Final = f"""Cut cards into hardware instances on request. By exact placement, or as others do.

Sequences are fixed lists of profiles, each offered to idle cards. A stream has Poisson arrivals and
exponential lifetimes of mean 1; a request without a place is rejected.

\b
Policies:
{_POLICIES}

\b
Examples:
  partage simulate mig --model A100-40GB --cards 8 --mix 50/25/12/8/5 --rho 1
  partage simulate mig --model H100-80GB --cards 1 --sequences lists.json

\b
Exit status:
  0  done
  2  bad input, or no such model, profile or policy; one line says which
"""


class _Mix(click.ParamType[tuple[float, ...]]):
    """Five numbers with slashes between them."""

    name = "mix"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """The numbers, or a usage error."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in str(value).split("/"))
        except ValueError:
            numbers = ()
        if len(numbers) != len(_SIZES):
            self.fail(
                f"{value!r} is not five numbers with slashes between them, percent of requests for "
                "1g, 2g, 3g, 4g and 7g, such as 50/25/12/8/5",
                param,
                ctx,
            )
        return numbers


@click.command(cls=Sectioned, help=_HELP)
@click.option(
    "--model",
    required=True,
    metavar="M",
    help=f"Model of the cards: {', '.join(MIG_CARDS)}; or a name that its driver reports.",
)
@click.option(
    "--cards", type=Whole(1, 100_000), required=True, metavar="N", help="Number of cards."
)
@click.option(
    "--sequences",
    type=click.Path(path_type=Path),
    metavar="FILE.json",
    help="Lists of profile names; each list is offered in its order to N idle cards.",
)
@options(
    click.option(
        "--mix",
        type=_Mix(),
        metavar="A/B/C/D/E",
        help="A stream of requests instead: percent that ask for 1g, 2g, 3g, 4g and 7g.",
    ),
    click.option(
        "--rho", type=float, metavar="R", help="Memory units asked for on average, as part of all."
    ),
    option("--seed", type=int, default=42, metavar="S", help="Seed of the draws."),
    option(
        "--arrivals",
        type=Whole(1, 10_000_000),
        default=20_000,
        metavar="N",
        help="Number of requests.",
    ),
    option(
        "--warmup",
        type=Whole(0),
        default=2_000,
        metavar="N",
        help="Number of first requests that are not counted.",
    ),
    flag(
        "--wait",
        help="A request without a place waits, and is tried in order of arrival, instead of being "
        "rejected.",
    ),
    title="Stream of requests, with --mix",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="P",
    help="A policy of the list above; may be repeated to compare. Default: partage.",
)
@output_option("How to print results; a list where --policy is repeated.")
def mig(  # noqa: PLR0913, PLR0917 # click passes every option by its name
    model: str,
    cards: int,
    sequences: Path | None,
    mix: tuple[float, ...] | None,
    rho: float | None,
    seed: int,
    arrivals: int,
    warmup: int,
    wait: bool,  # noqa: FBT001 # a flag
    policies: tuple[str, ...],
    output: str,
) -> None:
    """Read the request, run every policy, print; the help text is above."""
    names = policies or ("partage",)
    try:
        axis = _axis(model)
        unknown = next((name for name in names if name not in POLICIES), None)
        if unknown is not None:
            raise InvalidValue(f"no policy {unknown!r}; choose one of {', '.join(POLICIES)}")
        if sequences is not None:
            if mix is not None or rho is not None or wait:
                raise InvalidValue(
                    "--sequences stands alone; --mix, --rho and --wait are of a stream"
                )
            offered = _sequences(sequences, axis)
            results = [_offered(offered, axis, cards, name) for name in names]
        else:
            shares = _shares(axis, mix, rho)
            stream = Stream(axis, cards, shares, rho or 0.0, seed, arrivals, warmup, wait)
            results = [_streamed(stream, name) for name in names]
    except PartageError as error:
        end(error)
    _print(results, output)


def _axis(model: str) -> MigAxis:
    card = find_card(model)
    if card is None:
        raise InvalidValue(f"no model {model!r}; name one of {', '.join(MIG_CARDS)}, or an alias")
    if not card.axis.length:
        raise InvalidValue(f"{card.name}: where its instances may start is not published")
    return card.axis


def _shares(axis: MigAxis, mix: tuple[float, ...] | None, rho: float | None) -> dict[str, float]:
    """Profile name to its percent; rejects sizes that the model lacks."""
    if mix is None or rho is None:
        raise InvalidValue("give --sequences FILE.json, or a stream: --mix A/B/C/D/E with --rho R")
    plain = {profile.compute: profile.name for profile in axis.profiles if profile.plain}
    shares = {}
    for compute, percent in zip(_SIZES, mix, strict=True):
        name = plain.get(compute)
        if name is not None:
            shares[name] = percent
        elif percent:
            raise InvalidValue(f"{axis.model} has no {compute}g profile; its share must be 0")
    return shares


def _sequences(path: Path, axis: MigAxis) -> list[list[str]]:
    try:
        text = read_file(path, _MOST_BYTES)
    except OSError as error:
        raise InvalidDocument(
            f"{path}: {error.strerror or error}; name a file of lists of profiles"
        ) from None
    try:
        lists = msgspec.json.decode(text, type=list[list[str]])
    except UNREADABLE as error:
        raise InvalidDocument(f"{path}: not a JSON list of lists of names: {error}") from None
    known: dict[str, str] = {}
    for number, names in enumerate(lists):
        for place, name in enumerate(names):
            if name not in known:
                profile = find_profile(axis, name)
                if profile is None:
                    there = ", ".join(p.name for p in axis.profiles)
                    raise InvalidDocument(
                        f"{path}: [{number}][{place}]: {axis.model} has no profile {name!r}; "
                        f"name one of {there}"
                    )
                known[name] = profile.name
    return [[known[name] for name in names] for names in lists]


def _offered(sequences: list[list[str]], axis: MigAxis, cards: int, policy: str) -> dict[str, Any]:
    found = offer(sequences, axis, cards, policy)
    return {
        "model": axis.model,
        "cards": cards,
        "policy": policy,
        "offered": found.offered,
        "admitted_in_full": found.in_full,
        "seconds": round(found.seconds, 3),
    }


def _streamed(stream: Stream, policy: str) -> dict[str, Any]:
    found = run(stream, policy)
    result = {
        "model": stream.axis.model,
        "cards": stream.cards,
        "policy": policy,
        "mix": stream.mix,
        "rho": stream.load,
        "seed": stream.seed,
        "offered": found.offered,
        "accepted": found.accepted,
        "acceptance": found.acceptance,
        "volume_acceptance": found.volume_acceptance,
        "seconds": round(found.seconds, 3),
    }
    if stream.waits:
        result |= {"accepted_at_once": found.at_once / found.offered, "mean_wait": found.mean_wait}
    return result


def _print(results: list[dict[str, Any]], output: str) -> None:
    if not structured(output, results if len(results) > 1 else results[0]):
        first = results[0]
        told = f"{first['model']}, cards: {first['cards']}"
        if "mix" in first:
            shares = ", ".join(f"{name} {share:g}" for name, share in first["mix"].items())
            told += f"; asked: {shares}; load {first['rho']:g}; seed {first['seed']}"
        with paper() as console:
            console.print(_table(results))
            console.print(told, style="dim")


def _table(results: list[dict[str, Any]]) -> PlainTable:
    stream, waits = "mix" in results[0], "mean_wait" in results[0]
    columns = ["POLICY", "OFFERED"]
    columns += ["ACCEPTED", "PART", "OF VOLUME"] if stream else ["IN FULL", "PART"]
    columns += ["AT ONCE", "MEAN WAIT"] if waits else []
    table = PlainTable(*columns, "SECONDS", keys=1)
    for one in results:
        row = [one["policy"], f"{one['offered']:,}"]
        if stream:
            row += [f"{one['accepted']:,}", f"{one['acceptance']:.2%}"]
            row += [f"{one['volume_acceptance']:.2%}"]
        else:
            part = one["admitted_in_full"] / one["offered"] if one["offered"] else 0.0
            row += [f"{one['admitted_in_full']:,}", f"{part:.2%}"]
        if waits:
            row += [f"{one['accepted_at_once']:.2%}", f"{one['mean_wait']:.4f}"]
        table.add_row(*row, f"{one['seconds']:.2f}")
    return table
