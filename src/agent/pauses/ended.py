"""Notes for the agent how kiwi has failed: by which of its commands, if by one, with what status, and what that said last.
Writes one file."""
import json
import subprocess
import types

from kiwi import command, command_process, kiwi
from kiwi.command import Command
from kiwi.exceptions import KiwiCommandError, KiwiScriptFailed

ENDED = "/run/kiln-kiwi-ended.json"

run = None
App = kiwi.App
# The program that kiwi started last, and the script that failed last.
started = None
script = None


class Program(subprocess.Popen):
    """A program that kiwi runs. It keeps what it said, which kiwi's exceptions have in one text with other things."""

    said = ("", "")

    def __init__(self, *arguments, **options):
        global started
        super().__init__(*arguments, **options)
        started = self

    def communicate(self, *arguments, **options):
        streams = super().communicate(*arguments, **options)
        self.said = tuple((text or b"").decode(errors="replace") for text in streams)
        return streams


def noting_run(*arguments, **options):
    global started
    started = None
    try:
        return run(*arguments, **options)
    except KiwiCommandError as error:
        error.process = started
        raise


def noting(poll):
    def wrapped(self, *arguments, **options):
        global script
        process = self.command.command.process
        try:
            result = poll(self, *arguments, **options)
        except KiwiCommandError as error:
            process.said = (self.command.last, self.command.get_error_output())
            error.process = process
            raise
        if getattr(result, "returncode", 0):
            process.said = (self.command.last, result.stderr)
            script = process
        return result

    return wrapped


def failed_process(error):
    """The program because of which an exception was raised, directly or while another was handled."""
    if isinstance(error, KiwiScriptFailed):
        return script
    while error is not None:
        if process := getattr(error, "process", None):
            return process
        error = error.__cause__ or error.__context__
    return None


def last_line(process):
    """What it said last: to standard error, or else at all."""
    for text in reversed(process.said):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1]
    return ""


def note(error):
    ended = {"error": type(error).__name__, "message": str(error), "program": None}
    if process := failed_process(error):
        words = [str(word) for word in process.args]
        ended["program"] = {"words": words, "pid": process.pid, "status": process.returncode, "said": last_line(process)}
    with open(ENDED, "w") as file:
        json.dump(ended, file)


def noting_app():
    try:
        return App()
    except Exception as error:
        note(error)
        raise


def install():
    global run
    # What others have made of it by now.
    run = Command.run
    ours = types.ModuleType("subprocess")
    ours.__dict__.update(vars(subprocess))
    ours.Popen = Program
    command.subprocess = ours
    Command.run = staticmethod(noting_run)
    for name in ("poll", "poll_show_progress", "poll_and_watch"):
        setattr(command_process.CommandProcess, name, noting(getattr(command_process.CommandProcess, name)))
    kiwi.App = noting_app
