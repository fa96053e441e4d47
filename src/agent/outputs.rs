//! The outputs of finished steps that later steps need. A file beside them records them, so that another attempt at
//! the job can continue from a step when it gets the same disk space. Touches the job's disk space only.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use kiln_inside::room::remove_tree;
use kiln_records::{ArtifactKind, Code, Epoch, Failure, Step, protocol::JobDescription};
use serde::{Deserialize, Serialize};

use crate::squashfs::Device;

/// The file of the record, in the job's disk space.
const FILE: &str = "steps.json";

/// The artifacts, as files.
pub type Artifacts = Vec<(ArtifactKind, PathBuf)>;

/// The outputs of the steps so far, and the paths for those of others.
#[derive(Debug, Clone)]
pub struct Outputs {
    scratch: PathBuf,
    /// The steps of a job of its type.
    steps: &'static [Step],
    /// Facts that the disk space itself does not show.
    pub facts: Facts,
}

/// Facts for later steps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The last finished step; all earlier ones are finished too.
    finished: Option<Step>,
    /// From the fetch: the recipe's directory.
    pub recipe: PathBuf,
    /// From the fetch: when it began, in seconds since 1970. What has a later time was made by the job.
    #[serde(default)]
    pub begun: i64,
    /// From the fetch: the time of the recipe's newest file.
    #[serde(default)]
    pub newest: u32,
    /// From the wait for repositories: whether the recipe has a type `tbz`, the one for IMS.
    pub has_tbz: bool,
    /// From the fetch of an image: device nodes for the next squashfs, since a sandbox cannot make any.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// From the build: how often a program ran as a native twin.
    #[serde(default)]
    pub twins: u64,
    /// From packaging.
    pub artifacts: Artifacts,
}

impl Facts {
    /// The date of the image of `job`, if that is to be reproducible.
    pub fn epoch(&self, job: &JobDescription) -> Option<u32> {
        Some(match job.epoch? {
            Epoch::Recipe => self.newest,
            Epoch::At(at) => at,
        })
    }
}

impl Outputs {
    /// The outputs of a new job with these steps, in its empty disk space.
    pub fn none(scratch: &Path, steps: &'static [Step]) -> Self {
        Self {
            scratch: scratch.to_owned(),
            steps,
            facts: Facts::default(),
        }
    }

    /// The outputs that another attempt left in `scratch`, as needed by a job that continues from step `from`.
    ///
    /// # Errors
    ///
    /// `nothing_to_resume` when a step before `from` was not finished or its outputs are gone.
    pub fn of_another_attempt(scratch: &Path, steps: &'static [Step], from: Step) -> Result<Self, Failure> {
        let mut outputs = Self::none(scratch, steps);
        let before = |step| outputs.before(step);
        // Templates are rendered, and images changed, in place: that needs a freshly fetched recipe or image.
        if from <= Step::Template || from == Step::Customize {
            return Ok(outputs);
        }
        let missing = |what: String| {
            Failure::new(
                Code::NothingToResume,
                format!("the job cannot resume from step {from}: {what}"),
            )
            .hint("start the job from the beginning")
        };
        let text = fs_err::read(scratch.join(FILE)).map_err(|error| missing(error.to_string()))?;
        let facts: Facts = serde_json::from_slice(&text).map_err(|error| missing(error.to_string()))?;
        // The agent died while the shell was open.
        let is_left_open = from == Step::Package && facts.finished == Some(before(Step::Customize));
        let is_left_open = is_left_open && outputs.opened().exists();
        if !is_left_open && facts.finished.is_none_or(|finished| finished < before(from)) {
            return Err(missing(format!("step {} was not finished", before(from))));
        }
        if from == Step::Verify {
            outputs.bring_back()?;
        }
        let needed: Vec<PathBuf> = match from {
            Step::Verify | Step::Package => vec![outputs.root()],
            Step::Upload => facts.artifacts.iter().map(|(_, path)| path.clone()).collect(),
            _ => vec![facts.recipe.clone()],
        };
        if let Some(gone) = needed.iter().find(|path| !path.exists()) {
            return Err(missing(format!("{} is gone", gone.display())));
        }
        outputs.facts = Facts {
            finished: Some(before(from)),
            ..facts
        };
        Ok(outputs)
    }

    /// The note of what is in the root only while its shell is open.
    pub fn opened(&self) -> PathBuf {
        self.scratch.join("root.open")
    }

    /// The path of the root.
    pub fn root(&self) -> PathBuf {
        self.scratch.join("root")
    }

    /// The place of the root that twins helped to make, while it is made once more to be verified.
    pub fn twinned(&self) -> PathBuf {
        self.scratch.join("twinned")
    }

    /// The place of the record of writers, while a root is verified.
    pub fn writers(&self) -> PathBuf {
        self.scratch.join("writers")
    }

    /// The file with the commands whose native twins gave up.
    pub fn given_up(&self) -> PathBuf {
        self.scratch.join("given-up")
    }

    /// Removes the root.
    pub fn remove_root(&self) -> Result<(), Failure> {
        remove(&self.root()).map_err(|error| Failure::io("cannot remove the root", &error))
    }

    /// Puts the root that twins helped to make back into its place, if it is not there.
    pub fn bring_back(&self) -> Result<(), Failure> {
        let twinned = self.twinned();
        if !twinned.exists() {
            return Ok(());
        }
        let back = remove(&self.root()).and_then(|()| fs_err::rename(twinned, self.root()));
        back.map_err(|error| Failure::io("cannot bring back the root", &error))
    }

    /// The directory of native twins while the root is made.
    pub fn twins(&self) -> PathBuf {
        self.scratch.join("twins")
    }

    /// The paths of the recipe archive, and of the unpacked recipe.
    pub fn recipe(&self) -> (PathBuf, PathBuf) {
        (self.scratch.join("recipe.archive"), self.scratch.join("recipe"))
    }

    /// The path of the root file system of the image that is changed, or of the layer of a recipe.
    pub fn base(&self) -> PathBuf {
        self.scratch.join("base.squashfs")
    }

    /// The path of the record of files that are unchanged since they were unpacked from it.
    pub fn unpacked(&self) -> PathBuf {
        self.scratch.join("unpacked.json")
    }

    /// The paths of the squashfs and of the kernel.
    pub fn packages(&self) -> (PathBuf, PathBuf) {
        (self.scratch.join("rootfs.squashfs"), self.scratch.join("kernel"))
    }

    /// The path of the container image, an archive with an OCI image layout.
    pub fn container(&self) -> PathBuf {
        self.scratch.join("container.tar")
    }

    /// The file with what is known of the packages in the root.
    pub fn installed(&self) -> PathBuf {
        self.scratch.join("installed.json")
    }

    /// The job's disk space.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// The directory of the documents that say what the root consists of.
    pub fn documents(&self) -> PathBuf {
        self.scratch.join("documents")
    }

    /// The steps to do, in order. The very first step is done in every attempt and leaves nothing.
    pub fn steps(&self) -> impl Iterator<Item = Step> + use<> {
        let finished = self.facts.finished.unwrap_or(Step::Prepare);
        self.steps.iter().copied().filter(move |step| *step > finished)
    }

    /// The step before another.
    fn before(&self, step: Step) -> Step {
        let earlier = self.steps.iter().rev().find(|earlier| **earlier < step);
        earlier.copied().unwrap_or(Step::Prepare)
    }

    /// Prepares a step: removes the partial results of an earlier attempt at it.
    pub fn begin(&mut self, step: Step) -> Result<(), Failure> {
        // First, so that a crash in between does not leave removed outputs recorded as finished.
        self.finished(self.before(step))?;
        let products = match step {
            Step::Fetch if self.steps.contains(&Step::Customize) => vec![self.base(), self.root(), self.opened()],
            Step::Fetch => vec![self.recipe().0, self.recipe().1],
            Step::Build => vec![
                self.root(),
                self.twinned(),
                self.twins(),
                self.writers(),
                self.base(),
                self.unpacked(),
                self.installed(),
                self.container(),
            ],
            Step::Customize => vec![self.twins()],
            Step::Package => vec![self.packages().0, self.packages().1, self.documents()],
            Step::Verify => vec![self.twins(), self.writers()],
            Step::Prepare | Step::Template | Step::Repos | Step::Upload => Vec::new(),
        };
        for path in products {
            remove(&path).map_err(|error| Failure::io("cannot remove the files of another attempt", &error))?;
        }
        Ok(())
    }

    /// Records durably that a step is finished.
    pub fn finished(&mut self, step: Step) -> Result<(), Failure> {
        self.facts.finished = Some(step);
        let write = || -> io::Result<()> {
            let mut file = tempfile::NamedTempFile::new_in(&self.scratch)?;
            serde_json::to_writer(&mut file, &self.facts)?;
            file.flush()?;
            file.as_file().sync_all()?;
            file.persist(self.scratch.join(FILE))?;
            Ok(())
        };
        let is_closed = step >= Step::Customize;
        let written = write().and_then(|()| if is_closed { remove(&self.opened()) } else { Ok(()) });
        written.map_err(|error| Failure::io("cannot record the progress of the job", &error))
    }
}

/// Whether a failure is the end of a shell only: the root is as its user left it.
pub(crate) fn is_verdict(failure: &Failure) -> bool {
    matches!(failure.code, Code::ShellFailed | Code::ShellTimeout)
}

/// Removes whatever is at a path, if anything is.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs_err::symlink_metadata(path) {
        Ok(found) if found.is_dir() => remove_tree(path),
        Ok(_) => fs_err::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use kiln_records::JobType;

    use super::*;

    const CREATE: &[Step] = Step::of(JobType::Create);

    /// A disk space in which every step up to packaging is finished.
    fn packaged(scratch: &Path) -> Outputs {
        let mut outputs = Outputs::none(scratch, CREATE);
        for step in [Step::Fetch, Step::Template, Step::Repos, Step::Build, Step::Package] {
            outputs.begin(step).unwrap();
            match step {
                Step::Fetch => {
                    outputs.facts.recipe = outputs.recipe().1;
                    fs_err::create_dir(&outputs.facts.recipe).unwrap();
                }
                Step::Repos => outputs.facts.has_tbz = true,
                Step::Build => fs_err::create_dir_all(outputs.root().join("etc")).unwrap(),
                Step::Package => {
                    fs_err::write(outputs.packages().0, "squashfs").unwrap();
                    outputs.facts.artifacts = vec![(ArtifactKind::Rootfs, outputs.packages().0)];
                }
                _ => {}
            }
            outputs.finished(step).unwrap();
        }
        outputs
    }

    fn refusal(scratch: &Path, from: Step) -> Code {
        Outputs::of_another_attempt(scratch, CREATE, from).unwrap_err().code
    }

    #[test]
    fn another_attempt_goes_on_where_it_is_told_to() {
        let scratch = tempfile::tempdir().unwrap();
        let all = packaged(scratch.path()).facts;
        let steps = CREATE;
        for (from, steps) in [
            (Step::Upload, &steps[6..]),
            (Step::Package, &steps[5..]),
            (Step::Build, &steps[4..]),
            (Step::Repos, &steps[3..]),
            (Step::Template, &steps[1..]),
            (Step::Prepare, &steps[1..]),
        ] {
            let outputs = Outputs::of_another_attempt(scratch.path(), CREATE, from).unwrap();
            assert_eq!(outputs.steps().collect::<Vec<_>>(), steps, "{from}");
        }
        let outputs = Outputs::of_another_attempt(scratch.path(), CREATE, Step::Upload).unwrap();
        assert_eq!(outputs.facts, all);
    }

    #[test]
    fn a_step_begins_clean_and_its_followers_are_no_longer_finished() {
        let scratch = tempfile::tempdir().unwrap();
        packaged(scratch.path());
        let mut outputs = Outputs::of_another_attempt(scratch.path(), CREATE, Step::Build).unwrap();
        outputs.begin(Step::Build).unwrap();
        assert!(!outputs.root().exists());
        assert!(outputs.facts.recipe.exists());
        // The attempt crashes here.
        fs_err::create_dir(outputs.root()).unwrap();
        assert_eq!(refusal(scratch.path(), Step::Package), Code::NothingToResume);
        assert!(Outputs::of_another_attempt(scratch.path(), CREATE, Step::Build).is_ok());
    }

    #[test]
    fn a_root_that_was_being_verified_is_brought_back() {
        let scratch = tempfile::tempdir().unwrap();
        let resumed = |from| Outputs::of_another_attempt(scratch.path(), Step::VERIFIED, from);
        let mut outputs = Outputs::none(scratch.path(), Step::VERIFIED);
        outputs.finished(Step::Build).unwrap();
        fs_err::create_dir_all(outputs.root().join("half")).unwrap();
        fs_err::create_dir_all(outputs.twinned().join("etc")).unwrap();
        // The root was not verified.
        assert_eq!(resumed(Step::Package).unwrap_err().code, Code::NothingToResume);
        let again = resumed(Step::Verify).unwrap();
        assert_eq!(again.steps().next(), Some(Step::Verify));
        assert!(outputs.root().join("etc").exists() && !outputs.twinned().exists());
        resumed(Step::Verify).unwrap();
        assert!(outputs.root().join("etc").exists());
    }

    #[test]
    fn a_root_whose_shell_was_open_can_be_packaged() {
        let scratch = tempfile::tempdir().unwrap();
        let resumed = |from| Outputs::of_another_attempt(scratch.path(), Step::of(JobType::Customize), from);
        let mut outputs = Outputs::none(scratch.path(), Step::of(JobType::Customize));
        fs_err::create_dir_all(outputs.root()).unwrap();
        outputs.begin(Step::Customize).unwrap();
        assert_eq!(resumed(Step::Package).unwrap_err().code, Code::NothingToResume);
        fs_err::write(outputs.opened(), "{}").unwrap();
        assert_eq!(resumed(Step::Upload).unwrap_err().code, Code::NothingToResume);
        let mut again = resumed(Step::Package).unwrap();
        assert_eq!(again.steps().next(), Some(Step::Package));
        again.begin(Step::Package).unwrap();
        assert!(!again.opened().exists());
        resumed(Step::Package).unwrap();
    }

    #[test]
    fn there_is_nothing_to_resume_without_the_outputs() {
        let scratch = tempfile::tempdir().unwrap();
        assert_eq!(refusal(scratch.path(), Step::Build), Code::NothingToResume);
        let outputs = packaged(scratch.path());
        fs_err::remove_file(outputs.packages().0).unwrap();
        assert_eq!(refusal(scratch.path(), Step::Upload), Code::NothingToResume);
        fs_err::write(scratch.path().join(FILE), "{").unwrap();
        assert_eq!(refusal(scratch.path(), Step::Package), Code::NothingToResume);
    }
}
