"""`python -m reports.speculation`: does speculation pay, and how many tokens should be drafted?

    python -m reports.speculation --verify-ms 29.49 --share 0.97 --step-ms 12.12 \
        --accept-length 2.0 --target-tok-s 150
    python -m reports.speculation --from RUN --rows 4 --accept-length 2.6 --draft-step-ms 0.6
    python -m ingest verify.log plain.log --records logs.jsonl
    python -m reports.speculation --from logs.jsonl --target-tok-s 150

    cycle        = verify / share                 tokens/s   = requests x accept length / cycle
    break-even   = cycle / plain step             by verify  = verify / plain step
    for a rate   : accept length = rate x cycle / requests

With a line of time against rows (--base-ms and --slope-ms, or --from RUN) and the acceptance of a
step it says which chain and which tree is best, and the break-even acceptance by requests and
drafted tokens; plain decoding's rows grow with the requests, too. What is missing is said, never
guessed. The first line is the verdict; rows begin with what they are: number, draft, even, missing.
"""

from pathlib import Path
from typing import Annotated

import typer

from verifyscope import cli

PROGRAM = "python -m reports.speculation"
_DEFINITIONS = "length/rows, taken/drafted, taken/steps or step"

app = cli.app(None)


@app.command()
def main(
    verify_ms: Annotated[float | None, typer.Option(help="A verify pass.")] = None,
    share: Annotated[float | None, typer.Option(help="Its part of the cycle, 0 to 1.")] = None,
    cycle_ms: Annotated[float | None, typer.Option(help="A cycle: draft, verify, host.")] = None,
    step_ms: Annotated[
        float | None, typer.Option(help="A step without speculation, of as many requests.")
    ] = None,
    accept_length: Annotated[
        float | None, typer.Option(help="Tokens a cycle, the bonus token counted.")
    ] = None,
    accept_rate: Annotated[float | None, typer.Option(help="0 to 1; say which, too.")] = None,
    accept_rate_is: Annotated[
        str | None, typer.Option(metavar="DEFINITION", help=f"{_DEFINITIONS}.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(help="Rows a request verifies: its drafted tokens and the one before."),
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option(help="The same without that one.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Draft steps, of a tree  [default: the drafted tokens]")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(help="Requests at once.  [default: 1, or the log's]")
    ] = None,
    target_tok_s: Annotated[
        float | None, typer.Option(help="Tokens a second to reach, of all requests.")
    ] = None,
    step_acceptance: Annotated[
        str | None,
        typer.Option(help="Chance of a drafted token, or of each candidate: 0.7,0.15,0.05."),
    ] = None,
    draft_step_ms: Annotated[float | None, typer.Option(help="One step of the drafter.")] = None,
    base_ms: Annotated[float | None, typer.Option(help="A pass of no rows.")] = None,
    slope_ms: Annotated[float | None, typer.Option(help="What each further row adds.")] = None,
    run: Annotated[
        list[Path] | None,
        typer.Option(
            "--from", metavar="RUN", help="Records with times at several rows, or of a log."
        ),
    ] = None,
    point: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The log of RUN, or its system, that holds this text."),
    ] = None,
    line: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The line of RUN that holds this text.")
    ] = None,
    op: Annotated[
        str | None, typer.Option(help="The slope of this kernel of RUN; needs --calls.")
    ] = None,
    calls: Annotated[int | None, typer.Option(help="Its calls in a pass.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write question and answer here.")] = None,
    records: Annotated[
        Path | None, typer.Option(help="Append what was given and the verdict to this file.")
    ] = None,
) -> None:
    """Say whether speculation pays, what it lacks, and how many tokens to draft."""
    from reports._calculator import of_logs, printing
    from reports._calculator import records as rows_of
    from reports._calculator.answer import answer
    from reports._calculator.asked import Given, asked
    from reports._calculator.of_run import Wanted, take

    wanted = Wanted(line=line, op=op, calls=calls, point=point, requests=requests)
    taken = take(run or [], wanted)
    given = Given(
        verify_ms=verify_ms,
        share=share,
        cycle_ms=cycle_ms,
        step_ms=step_ms,
        accept_length=accept_length,
        accept_rate=accept_rate,
        accept_rate_is=accept_rate_is,
        rows=rows,
        draft_tokens=draft_tokens,
        steps=steps,
        requests=1 if requests is None else requests,
        target_tok_s=target_tok_s,
        step_acceptance=step_acceptance,
        draft_step_ms=draft_step_ms,
        base_ms=base_ms,
        slope_ms=slope_ms,
    )
    if taken.point is not None:
        given = of_logs.filled(given, taken.point)
    question = asked(given, taken.line)
    found = answer(question)
    if json is not None:
        rows_of.write_json(json, question, found)
    if records is not None:
        from verifyscope import runs

        with runs.start(records, "speculation") as kept:
            for record in rows_of.records(question, found, kept.environment):
                kept.append(record)
    printing.show(question, found)


if __name__ == "__main__":
    cli.run(app, PROGRAM)
