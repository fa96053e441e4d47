//! Says why buildah failed, and what an image could not keep, from what buildah said. Pure: no I/O.

use kiln_records::{Code, Failure};
use serde::Deserialize;

use crate::cause;

/// Words of buildah and its libraries, in lower case, and what they mean. The first that its last line has counts.
const KNOWN: [(&str, Code); 24] = [
    (
        "no image found in manifest list for architecture",
        Code::BaseWithoutArch,
    ),
    ("no image found in image index for architecture", Code::BaseWithoutArch),
    ("image platform", Code::BaseWithoutArch),
    ("toomanyrequests", Code::BaseUnreachable),
    ("too many requests", Code::BaseUnreachable),
    ("manifest unknown", Code::BaseUnreachable),
    ("requested access to the resource is denied", Code::BaseUnreachable),
    ("authentication required", Code::BaseUnreachable),
    ("name unknown", Code::BaseUnreachable),
    ("pinging container registry", Code::BaseUnreachable),
    ("unsupported mime type", Code::BaseUnusable),
    ("unsupported docker v2s2 media type", Code::BaseUnusable),
    ("unsupported schema version", Code::BaseUnusable),
    ("image-specific operation on artifact", Code::BaseUnusable),
    ("compression for", Code::BaseUnusable),
    ("image id \"", Code::BaseUnusable),
    ("decrypt", Code::BaseUnusable),
    ("unpacking failed", Code::BaseUnusable),
    ("does not match the expected digest", Code::BaseUnusable),
    ("digest did not match", Code::BaseUnusable),
    ("initializing source", Code::BaseUnreachable),
    ("reading blob", Code::BaseUnreachable),
    ("unable to copy from source", Code::BaseUnreachable),
    ("unknown instruction", Code::ContainerfileInvalid),
];

/// What buildah puts around an instruction that failed, and around what its program did.
const AT_STEP: &str = "building at STEP \"";
const RUNTIME: &str = "\": while running runtime: ";

/// What an image's configuration has that the OCI format has no place for.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Beyond {
    healthcheck: Option<serde_json::Value>,
    on_build: Option<Vec<String>>,
    shell: Option<Vec<String>>,
}

impl Beyond {
    /// Whether something runs when a container is made of it.
    pub(super) fn has_triggers(&self) -> bool {
        self.on_build.as_ref().is_some_and(|all| !all.is_empty())
    }

    /// A sentence for each instruction that is lost.
    pub(super) fn lost(&self) -> Vec<String> {
        let lost = [
            ("HEALTHCHECK", self.healthcheck.is_some()),
            ("ONBUILD", self.has_triggers()),
            ("SHELL", self.shell.as_ref().is_some_and(|all| !all.is_empty())),
        ];
        let told = |name| format!("{name} is not kept: an OCI image has no place for it");
        lost.into_iter()
            .filter(|(_, is_lost)| *is_lost)
            .map(|(name, _)| told(name))
            .collect()
    }
}

/// Why buildah failed: its output, the last line of its standard error, and the Containerfile.
pub(super) fn cause(said: &[String], last: &str, file: &str) -> Failure {
    // A trace ends with what caused it least.
    let is_trace = !last.trim().starts_with("Error: ");
    if let Some(panic) = said
        .iter()
        .find_map(|line| line.split_once("panic: "))
        .filter(|_| is_trace)
    {
        return Failure::new(Code::ContainerfileInvalid, format!("buildah broke off: {}", panic.1))
            .hint("`index out of range` is a stage by a number that there is not: `COPY --from=N`");
    }
    let last = last
        .trim()
        .trim_start_matches("Error: ")
        .replace("\"/scratch/recipe\"", "the context")
        .replace("/scratch/recipe/", "")
        .replace(
            "possible escaping context directory error",
            "it leads out of the context",
        );
    if let Some(step) = last.strip_prefix("resolving step {") {
        return unresolved(step);
    }
    // A step as the library sees it is of no use to its author.
    let last = last
        .split_once(" &imagebuilder")
        .map_or(last.as_str(), |(before, _)| before);
    let rest = last.strip_prefix(AT_STEP);
    if let Some((step, how)) = rest.and_then(|rest| rest.rsplit_once(RUNTIME)) {
        return of_program(said, &at(step, file), how);
    }
    let lower = last.to_lowercase();
    let known = KNOWN.iter().find(|(words, _)| lower.contains(words));
    let code = known.map_or(Code::ContainerfileInvalid, |(_, code)| *code);
    let detail = match rest.and_then(|rest| rest.split_once("\": ")) {
        Some((step, why)) => format!("{}: {why}", at(step, file)),
        None => last.to_owned(),
    };
    Failure::new(code, detail).hint(match code {
        Code::BaseUnreachable if lower.contains("too many requests") || lower.contains("toomanyrequests") => {
            "wait, or read the image with a login or from a mirror: docs/containerfiles.md"
        }
        _ if lower.contains("no from statement found") => {
            "the name of a base may be a value that was not given: `--set NAME=VALUE`"
        }
        Code::BaseUnreachable => {
            "check the image's name, and whether its registry can be reached from here without a login"
        }
        Code::BaseWithoutArch => "`kiln inspect` shows for which architectures the image is there",
        Code::BaseUnusable => "it is damaged, encrypted, or no container image of a form that is read",
        _ => "correct this in the Containerfile, or in the files beside it",
    })
}

/// What is wrong with a step that cannot be understood, as the library shows it: `… Original:TEXT Flags:[] … StartLine:12 …}: WHY`.
fn unresolved(step: &str) -> Failure {
    let between = |begin: &str, end: &str| Some(step.split_once(begin)?.1.split_once(end)?.0.to_owned());
    let line = between("StartLine:", " ").unwrap_or_default();
    let text = between("Original:", " Flags:").unwrap_or_default();
    let why = step.rsplit_once("}: ").map_or(step, |(_, why)| why);
    Failure::new(Code::ContainerfileInvalid, format!("line {line}, `{text}`: {why}"))
        .hint("correct this in the Containerfile")
}

/// Why the program of an instruction failed.
fn of_program(said: &[String], step: &str, how: &str) -> Failure {
    // buildah's own lines come after those of the program.
    let own: Vec<String> = said.iter().filter(|line| !is_buildahs(line)).cloned().collect();
    let begin = own.iter().rposition(|line| is_step(line)).map_or(0, |at| at + 1);
    let of_step = own.get(begin..).unwrap_or_default();
    if let Some(mut known) = cause::cause_of_script(of_step) {
        known.detail = format!("{step}: {}", known.detail);
        return known;
    }
    let words = cause::last_words(of_step).map(|line| format!("; its last line: {line}"));
    let words = words.unwrap_or_default();
    Failure::new(Code::InstructionFailed, format!("{step} ended with {how}{words}"))
        .hint("the output of the instruction precedes this line in the log")
}

/// An instruction, with its line in the file if that is known.
fn at(step: &str, file: &str) -> String {
    let head = |line: &str| line.trim().trim_end_matches('\\').trim().to_owned();
    let lines = file.lines().map(head).enumerate();
    let like = lines
        .filter(|(_, head)| !head.is_empty() && (step.starts_with(head.as_str()) || head.starts_with(step.trim())));
    let found = like.max_by_key(|(number, head)| (head.len(), std::cmp::Reverse(*number)));
    match found {
        Some((number, _)) => format!("line {}, `{}`", number + 1, step.trim()),
        None => format!("`{}`", step.trim()),
    }
}

fn is_buildahs(line: &str) -> bool {
    line.starts_with("Error: ") || line.starts_with("error running container") || line.starts_with(": exit status")
}

fn is_step(line: &str) -> bool {
    let line = line.split_once("] ").map_or(line, |(_, rest)| rest);
    line.starts_with("STEP ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "FROM scratch\nRUUN true\nRUN echo working && \\\n    ls /nonexistent\nCOPY missing.txt /\n";

    fn told(said: &[&str], last: &str) -> (Code, String) {
        let said: Vec<String> = said.iter().map(|line| (*line).to_owned()).collect();
        let failure = cause(&said, last, FILE);
        (failure.code, failure.detail)
    }

    #[test]
    fn a_failure_names_the_line_and_the_cause() {
        // As buildah 1.39 says them.
        for (last, code, detail) in [
            (
                "Error: building at STEP \"RUUN \": Build error: Unknown instruction: \"RUUN\" &imagebuilder.Step{Env:[]string{}}",
                Code::ContainerfileInvalid,
                "line 2, `RUUN`: Build error: Unknown instruction: \"RUUN\"",
            ),
            (
                "Error: building at STEP \"COPY missing.txt /\": checking on sources under \"/scratch/recipe\": copier: stat: \
                 \"/missing.txt\": no such file or directory",
                Code::ContainerfileInvalid,
                "line 5, `COPY missing.txt /`: checking on sources under the context: copier: stat: \"/missing.txt\": no such file or \
                 directory",
            ),
            (
                "Error: COPY --from=builder: no stage or image found with that name",
                Code::ContainerfileInvalid,
                "COPY --from=builder: no stage or image found with that name",
            ),
        ] {
            assert_eq!(told(&[], last), (code, detail.to_owned()));
        }
        let away = "Error: creating build container: initializing source docker://127.0.0.1:9/none/such:1: pinging container registry \
                    127.0.0.1:9: Get \"http://127.0.0.1:9/v2/\": dial tcp 127.0.0.1:9: connect: connection refused";
        assert_eq!(told(&[], away).0, Code::BaseUnreachable);
    }

    #[test]
    fn the_cause_of_a_run_is_what_its_program_said() {
        let said = [
            "[1/1] STEP 2/3: RUN echo before",
            "E: Unable to locate package of-before",
            "[1/1] STEP 3/3: RUN echo working && ls /nonexistent",
            "working",
            "ls: cannot access '/nonexistent': No such file or directory",
            "error running container: from /run/kiln-runtime creating container",
            "Error: building at STEP",
        ];
        let last =
            "Error: building at STEP \"RUN echo working &&     ls /nonexistent\": while running runtime: exit status 2";
        let detail = "line 3, `RUN echo working &&     ls /nonexistent` ended with exit status 2; its last line: ls: cannot access \
                      '/nonexistent': No such file or directory";
        assert_eq!(told(&said, last), (Code::InstructionFailed, detail.to_owned()));
        let said = ["STEP 2/2: RUN apt-get install x", "E: Unable to locate package x"];
        let last = "Error: building at STEP \"RUN apt-get install x\": while running runtime: exit status 100";
        let (code, detail) = told(&said, last);
        assert_eq!(code, Code::PackageNotFound);
        assert!(detail.starts_with("`RUN apt-get install x`: E: Unable"), "{detail}");
    }

    #[test]
    fn what_the_library_shows_of_itself_is_not_told() {
        let trace = [
            "panic: runtime error: index out of range [3] with length 1",
            "goroutine 1 [running]:",
        ];
        let (code, detail) = told(&trace, "github.com/hashicorp/go-multierror/group.go:20 +0x76");
        assert_eq!(code, Code::ContainerfileInvalid);
        assert!(detail.contains("index out of range [3]"), "{detail}");
        let step = "Error: resolving step {Value:env Next:0xc0001ea090 Children:[] Heredocs:[] Attributes:map[] Original:ENV name='a Flags:[] \
                    StartLine:12 EndLine:12}: unexpected end of statement while looking for matching single-quote";
        let expected = "line 12, `ENV name='a`: unexpected end of statement while looking for matching single-quote";
        assert_eq!(told(&[], step), (Code::ContainerfileInvalid, expected.to_owned()));
        let outside = "Error: building at STEP \"COPY ../x /\": possible escaping context directory error: copier: stat: \"/x\": no such file";
        assert!(told(&[], outside).1.contains("it leads out of the context"));
    }

    #[test]
    fn what_an_oci_image_cannot_have_is_named() {
        let beyond: Beyond =
            serde_json::from_str(r#"{"Healthcheck": {"Test": ["CMD"]}, "OnBuild": [], "Shell": null}"#).unwrap();
        assert_eq!(
            beyond.lost(),
            ["HEALTHCHECK is not kept: an OCI image has no place for it"]
        );
    }
}
