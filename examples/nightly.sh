#!/usr/bin/env bash
# A nightly build: a recipe that is built every night, and what can be seen and said of it. Start a server first
# (`kiln serve`). The schedule is left paused, for you to look at.
#
#   KILN_SERVER   the server               default http://127.0.0.1:9000
#   RECIPE        the recipe to build      default recipes/debian-minimal
#   TIMEZONE      whose nights             default Europe/Berlin
#   KILN          the program              default target/release/kiln
set -euo pipefail
cd "$(dirname "$0")/.."

program=${KILN:-target/release/kiln}
recipe=${RECIPE:-recipes/debian-minimal}
timezone=${TIMEZONE:-Europe/Berlin}

# Shows a command and runs it.
kiln() {
    printf '\n$ kiln'
    printf ' %q' "$@"
    printf '\n'
    "$program" "$@"
}

kiln recipes create --from "$recipe" --name nightly-recipe --linux-distribution debian
# At two o'clock, Monday to Friday. A night that was missed is made up for when the server is back; a build that is
# not done by the next night is replaced.
kiln schedules create --name nightly --recipe nightly-recipe --cron '0 2 * * MON-FRI' --timezone "$timezone" \
    --image-name '{recipe}-{date}' --missed-runs once --overlap replace
kiln schedules describe nightly --format table
kiln schedules list --format table

# Not waiting for the night.
kiln schedules run-now nightly
kiln schedules history nightly --format table

kiln schedules update nightly --cron '30 3 * * *'
kiln schedules pause nightly
