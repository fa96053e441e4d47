"""Warns of what a recipe does not get, or of what its author should look at: in the log, and for the job's record, which the agent
sees to once kiwi has ended. Writes one file.
"""
import json

# One object of JSON a line. The agent reads it.
WARNINGS = "/run/kiln-kiwi-warnings.jsonl"


def warn(code, text):
    # A name need not be text.
    text = text.encode(errors="backslashreplace").decode()
    # In a line of its own: kiwi does not end those that show its progress.
    print(f"\nwarning: {text} ({code})", flush=True)
    with open(WARNINGS, "a") as file:
        file.write(json.dumps({"code": code, "message": text}) + "\n")
