//! Twins on trial: announced, published for the trial only, then judged. Writes only the directory of twins.

use super::{World, in_dir};
use kiln_records::Failure;

use crate::twins::{choice::Verdict, layout};

impl World {
    /// Announces that `package`, which is being installed in the root, has programs with these keys that will be
    /// tried. Processes that start one of them wait for the outcome.
    ///
    /// # Errors
    ///
    /// The directory of twins cannot be written.
    pub fn expect(&mut self, package: &str, keys: Vec<String>) -> Result<(), Failure> {
        for key in &keys {
            if !self.shown.bin.contains_key(key) && !self.shown.trial.contains_key(key) {
                let told = self.shelf.publish_bytes(&in_dir(layout::TRIAL, key), b"", 0o644);
                told.map_err(|error| Failure::io("cannot announce a trial", &error))?;
            }
        }
        self.expected.entry(package.to_owned()).or_default().extend(keys);
        Ok(())
    }

    /// Ends the wait for keys of `package` that were announced by [`Self::expect`], except for trials in progress.
    ///
    /// # Errors
    ///
    /// The directory of twins cannot be written.
    pub fn settle(&mut self, package: &str) -> Result<(), Failure> {
        for key in self.expected.remove(package).into_iter().flatten() {
            if !self.shown.trial.contains_key(&key) {
                let withdrawn = self.shelf.withdraw(&in_dir(layout::TRIAL, &key));
                withdrawn.map_err(|error| Failure::io("cannot end a trial", &error))?;
            }
        }
        Ok(())
    }

    /// Ends all trials without a judgement, so that no process waits any longer.
    ///
    /// # Errors
    ///
    /// The directory of twins cannot be written.
    pub fn settle_all(&mut self) -> Result<(), Failure> {
        for key in std::mem::take(&mut self.shown.trial).into_keys() {
            let withdrawn = self.shelf.withdraw(&in_dir(layout::TRIAL, &key));
            withdrawn.map_err(|error| Failure::io("cannot end a trial", &error))?;
        }
        let packages: Vec<String> = self.expected.keys().cloned().collect();
        packages.iter().try_for_each(|package| self.settle(package))
    }

    /// Publishes a program whose answers equal those of the emulated one.
    pub fn accept(&mut self, key: &str) -> Result<(), Failure> {
        self.judge(key, Verdict::Accepted)
    }

    /// Removes a program for good.
    pub fn refuse(&mut self, key: &str) -> Result<(), Failure> {
        self.ledger.note_difference(key);
        self.judge(key, Verdict::Refused)
    }

    fn judge(&mut self, key: &str, verdict: Verdict) -> Result<(), Failure> {
        for item in self.items.values_mut().filter(|item| item.key.as_deref() == Some(key)) {
            if item.verdict != Verdict::Refused {
                item.verdict = verdict;
            }
        }
        self.publish(&mut Vec::new())
    }
}
