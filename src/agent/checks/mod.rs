//! Looks at a finished root as a node would, and says what is wrong with it. Reads the root; the check of extended attributes
//! also changes modes in it.

mod accounts;
mod attributes;
mod initrd;
mod kernel;
mod layout;
mod loader;

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use kiln_records::{
    Code, Failure, JobType, Warning,
    arch::Arch,
    protocol::{CheckRead, JobDescription},
    root_check::{self, CheckLevel, CheckLevels, ROOT_CHECKS},
};

use crate::{boot_files::BootSet, events::Events, outputs::Outputs, process::blocking, recipe_settings};

/// What to do about an initrd of another kernel.
const MISMATCH: &str =
    "make the recipe run dracut (or update-initramfs) for that kernel, or name kernel and initrd of one version";

/// The most findings of one check that are said one by one.
const MOST_SAID: usize = 8;

/// What checks look at.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) root: PathBuf,
    pub(crate) arch: Arch,
    pub(crate) boot: Option<BootSet>,
    /// What is known of the initrd once somebody has asked: it is large, and two checks want it.
    initrd: OnceLock<initrd::Drivers>,
}

impl Finished {
    pub(crate) fn new(root: PathBuf, arch: Arch, boot: Option<BootSet>) -> Self {
        Self {
            root,
            arch,
            boot,
            initrd: OnceLock::new(),
        }
    }
}

/// A check: the code of its findings, what to do about them, and the function that finds them.
struct Check {
    code: Code,
    advice: &'static str,
    look: fn(&Finished) -> Vec<String>,
}

/// The checks of a root by itself. Others are made where their facts are known: the inventory knows the owners of files.
const CHECKS: [Check; 10] = [
    Check {
        code: Code::RootLoader,
        advice: "something in the recipe has replaced or removed it: look for /lib, /lib64 and /usr/lib in its scripts and archives",
        look: loader::missing,
    },
    Check {
        code: Code::RootModes,
        advice: "chmod it in config.sh",
        look: layout::modes,
    },
    Check {
        code: Code::RootDevices,
        advice: "remove it at the end of the script that wrote to it",
        look: layout::devices,
    },
    Check {
        code: Code::RootLinks,
        advice: "move its content to where the link led, and make the link again",
        look: layout::links,
    },
    Check {
        code: Code::RootModules,
        advice: "install the kernel and its modules in one version, or name the kernel with --kernel-file-name",
        look: kernel::modules,
    },
    Check {
        code: Code::RootInitrd,
        advice: "nodes that mount the image's squashfs need them: add_drivers+=\" overlay squashfs loop \" for dracut, or their names in /etc/initramfs-tools/modules",
        look: initrd::lacking,
    },
    Check {
        code: Code::RootInitrdUnread,
        advice: "make sure that it has what mounts the image's squashfs on a node: squashfs, overlay and loop",
        look: initrd::unread,
    },
    Check {
        code: Code::RootAccounts,
        advice: "no file of the image can belong to it: use an id that the sandbox has",
        look: accounts::outside,
    },
    Check {
        code: Code::RootPackages,
        advice: "the log of its installation says why",
        look: accounts::half_installed,
    },
    Check {
        code: Code::RootAttributes,
        advice: "a squashfs cannot have them; the groups of these files have their own rights now, without the lists' masks",
        look: attributes::take_lists,
    },
];

/// The levels of the checks for a job.
#[derive(Debug, Clone, Default)]
pub(crate) struct Levels {
    site: CheckLevels,
    recipe: CheckLevels,
}

impl Levels {
    /// Those that the site, and the job's recipe, choose.
    ///
    /// # Errors
    ///
    /// `recipe_config_invalid`: the recipe's settings cannot be used.
    pub(crate) fn of_job(job: &JobDescription, outputs: &Outputs) -> Result<Self, Failure> {
        let recipe = match job.work.job_type() {
            JobType::Create => recipe_settings::of_recipe(&outputs.facts.recipe)?.checks,
            JobType::Customize => CheckLevels::new(),
        };
        Ok(Self {
            site: job.checks.clone(),
            recipe,
        })
    }

    /// That of one check.
    pub(crate) fn of(&self, code: Code) -> CheckLevel {
        root_check::level(code, &self.site, &self.recipe)
    }

    /// Says the findings of a check, or fails because of them.
    ///
    /// # Errors
    ///
    /// The check's own code, if its level is that.
    pub(crate) async fn judge(
        &self,
        code: Code,
        advice: &str,
        findings: Vec<String>,
        events: &Events,
    ) -> Result<(), Failure> {
        let level = self.of(code);
        if findings.is_empty() || level == CheckLevel::Off {
            return Ok(());
        }
        let more = findings.len().saturating_sub(MOST_SAID);
        for finding in findings.iter().take(MOST_SAID) {
            events.warn(Warning::new(code, finding).hint(advice)).await;
        }
        if more > 0 {
            events
                .warn(Warning::new(code, format_args!("{more} more of these")).hint(advice))
                .await;
        }
        if level == CheckLevel::Warn {
            events.say(format!("{code}: {advice}")).await;
            return Ok(());
        }
        Err(Failure::new(
            code,
            findings.into_iter().take(MOST_SAID).collect::<Vec<_>>().join("; "),
        )
        .hint(advice))
    }
}

/// All checks with their levels, as the site and the recipe choose them.
///
/// # Errors
///
/// `recipe_config_invalid`.
pub(crate) fn read(site: &CheckLevels, recipe: &Path) -> Result<Vec<CheckRead>, Failure> {
    let chosen = recipe_settings::of_recipe(recipe)?.checks;
    let check = |(code, _): (Code, CheckLevel)| {
        let level = root_check::level(code, site, &chosen);
        CheckRead {
            code,
            level,
            by_recipe: chosen.get(&code) == Some(&level),
        }
    };
    Ok(ROOT_CHECKS.map(check).into())
}

/// Makes all checks of a root by itself.
///
/// # Errors
///
/// The code of the first check that has findings and the level to fail.
pub(crate) async fn look(finished: Finished, levels: &Levels, events: &Events) -> Result<(), Failure> {
    let (another, found) = blocking(move || {
        Ok((
            initrd::of_another(&finished),
            CHECKS.map(|check| (check.look)(&finished)),
        ))
    })
    .await?;
    // No setting makes a node boot from it.
    if let Some(text) = another {
        return Err(Failure::new(Code::InitrdMismatch, text).hint(MISMATCH));
    }
    for (check, findings) in CHECKS.iter().zip(found) {
        levels.judge(check.code, check.advice, findings, events).await?;
    }
    Ok(())
}
