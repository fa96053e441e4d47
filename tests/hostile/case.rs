//! One hostile recipe, and how its job must end.

use serde_json::Value;

use crate::support::{Recipe, archive::Made};

/// The most that a log may have here, in bytes: half of `log_bytes`, for there is one attempt.
const LONGEST_LOG: usize = 32 << 20;

/// The recipe to upload.
pub enum Upload {
    Archive(Made),
    Directory(Recipe),
}

/// A hostile recipe.
pub struct Case {
    pub name: &'static str,
    /// The effect without protection.
    pub danger: &'static str,
    pub upload: Upload,
    /// A limit of the job, by its name in the API, in GiB.
    pub limit: Option<(&'static str, u32)>,
    /// Whether every step of its job runs, whatever an earlier job left.
    pub is_whole: bool,
    /// The code of the failure; none where the job only harms itself, or nothing, and succeeds.
    pub code: Option<&'static str>,
    /// Required texts in the cause or the log.
    pub says: Vec<&'static str>,
}

/// How a job ended.
pub struct End {
    pub progress: Value,
    pub log: String,
}

impl Case {
    pub fn archive(name: &'static str, danger: &'static str, archive: Made) -> Self {
        Self::new(name, danger, Upload::Archive(archive))
    }

    /// A recipe with this `config.sh`.
    pub fn script(name: &'static str, danger: &'static str, script: &str) -> Self {
        Self::new(name, danger, Upload::Directory(Recipe::with_script(script)))
    }

    pub fn new(name: &'static str, danger: &'static str, upload: Upload) -> Self {
        Self {
            name,
            danger,
            upload,
            limit: None,
            is_whole: false,
            code: None,
            says: Vec::new(),
        }
    }

    #[must_use]
    pub fn fails(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    #[must_use]
    pub fn says(mut self, words: &[&'static str]) -> Self {
        self.says.extend(words);
        self
    }

    #[must_use]
    pub fn limited(mut self, field: &'static str, gib: u32) -> Self {
        self.limit = Some((field, gib));
        self
    }

    /// Has its job reuse nothing.
    #[must_use]
    pub fn whole(mut self) -> Self {
        self.is_whole = true;
        self
    }

    /// The mistakes in the end of its job.
    pub fn complaints(&self, end: &End) -> Vec<String> {
        let error = &end.progress["error"];
        // Mostly the recipe's own output: kiwi's does not help here.
        let said = end
            .log
            .lines()
            .filter(|line| !line.contains("EXEC: ") && !line.contains("Looking for"));
        let said: Vec<String> = said.map(|line| line.chars().take(200).collect()).collect();
        let last = said[said.len().saturating_sub(40)..].join("\n");
        let about = |what: String| format!("{} ({}): {what}\nerror: {error}\n{last}", self.name, self.danger);
        let mut wrong = Vec::new();
        if error["code"].as_str() != self.code {
            wrong.push(about(format!("it did not end with {:?}", self.code)));
        }
        if end.progress["state"] != if self.code.is_some() { "error" } else { "success" } {
            wrong.push(about(format!("it ended as {}", end.progress["state"])));
        }
        if end.log.len() > LONGEST_LOG {
            wrong.push(about(format!("its log has {} bytes", end.log.len())));
        }
        let detail = error["detail"].as_str().unwrap_or_default();
        for words in &self.says {
            if !detail.contains(words) && !end.log.contains(words) {
                wrong.push(about(format!("nobody said `{words}`")));
            }
        }
        // Scripts say so of each thing that they should not have been able to do.
        let escapes = end.log.lines().filter(|line| line.contains("ESCAPED"));
        wrong.extend(escapes.map(|line| about(line.to_owned())));
        wrong
    }
}
