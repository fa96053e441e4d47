//! What a new job will be: where it runs, what it gets, or why it cannot be carried out at all.

use super::{
    admit::{Asked, Limits, needs},
    orchestrator::Orchestrator,
};
use crate::{
    arch::Arch,
    config::{ForeignIsolation, IsolationSettings},
    records::{
        Failure, Job, JobId, JobStatus, JobType, Moment, Recipe, Run, Step, TwinLevel,
        protocol::{BootFiles, TemplateMode},
        run::{How, Plan, Refused, ResumeFrom, Used},
    },
    store::StoredRun,
};

/// Builds of a recipe that say what the next one will need.
const HISTORY: u32 = 5;

/// What a job is made of beside its record.
#[derive(Debug, Clone, Default)]
pub struct NewRun {
    /// The recipe that it starts from; a customize job has none.
    pub recipe: Option<Recipe>,
    /// Whether it was asked for, or follows from the recipe, that it gets a kernel of its own.
    pub own_kernel: bool,
    /// Which tools may run as native twins, as the request says or else the recipe; none means as this server does.
    pub twins: Option<TwinLevel>,
    /// What it asks for.
    pub asked: Asked,
    /// Who asks.
    pub who: Option<String>,
}

impl Orchestrator {
    /// Decides what becomes of a new job and adds it. One that cannot be carried out here is added too, ended, with the
    /// reason.
    ///
    /// # Errors
    ///
    /// `store_conflict` when the id is taken; when store or place do not answer. The job is not added then.
    pub async fn accept(&self, mut job: Job, new: NewRun) -> Result<Job, Failure> {
        let capacity = self.driver.capacity().await?;
        let limits = Limits::of(&capacity, &self.capacity);
        let history: Vec<Used> = self
            .store
            .past_runs(job.artifact_id, HISTORY)
            .await?
            .iter()
            // A build that was cut short has not used what it needs.
            .filter(|past| past.run.failure().is_none() && past.job.arch == job.arch)
            .filter_map(|past| past.run.used)
            .collect();
        let placed = place(&job, new.own_kernel, Arch::host(), &self.isolation);
        let (how, why) = match &placed {
            Ok((how, why)) => (*how, why.clone()),
            Err(failure) => (How::Native, failure.detail.clone()),
        };
        let recipe = new.recipe.as_ref();
        let link = recipe.and_then(|recipe| recipe.link.as_ref());
        let values = recipe.and_then(|recipe| recipe.template_dictionary.clone());
        let mut run = Run::new(Plan {
            how,
            why,
            needs: needs(new.asked, &history, &self.capacity, limits),
            recipe: link.map(|link| link.path.clone()).unwrap_or_default(),
            values: values
                .unwrap_or_default()
                .into_iter()
                .map(|entry| (entry.key, entry.value))
                .collect(),
            template_mode: TemplateMode::Strict,
            twins: new.twins.unwrap_or(self.emulation.twins),
            boot: BootFiles {
                kernel: job.kernel_file_name.clone(),
                initrd: job.initrd_file_name.clone(),
                parameters: job.kernel_parameters_file_name.clone(),
                // Who names another file than usual wants that one.
                required: job.kernel_file_name != job.arch.kernel_file_name(),
            },
            resume: None,
            who: new.who,
        });
        let refused = placed.err();
        if let Some(failure) = &refused {
            // From its first state a run can always fail.
            let _ = run.fail(failure.clone(), Moment::now());
        }
        job.status = run.status(job.status);
        self.store.insert_run(&job, &run).await?;
        match refused {
            Some(failure) => {
                self.say(job.id, format!("error: {failure}")).await;
                self.wake.settle.notify_one();
            }
            None => self.wake.launch.notify_one(),
        }
        Ok(job)
    }
}

/// What became of the wish to do a job again.
#[derive(Debug)]
pub enum Resume {
    /// This new job does it.
    New(Box<Job>),
    /// It cannot be, for this reason.
    Not(String),
}

impl Orchestrator {
    /// Does a job that has ended again, as a new one; from a step on, if the files of its sandbox are still there.
    ///
    /// # Errors
    ///
    /// When store or place do not answer; nothing is added then.
    pub async fn again(&self, old: &StoredRun, from: Option<Step>, who: Option<String>) -> Result<Resume, Failure> {
        let StoredRun { job, run, .. } = old;
        if !run.state.is_final() {
            return Ok(Resume::Not("The job has not ended; cancel it first.".to_owned()));
        }
        let not_kept = "Nothing is left of the job's files to go on from; retry it without `from`.";
        if let Some(step) = from {
            if !run.settled {
                return Ok(Resume::Not(
                    "The job is still being cleared away; try again in a moment.".to_owned(),
                ));
            }
            if !run.kept || run.owner != Some(self.id) {
                return Ok(Resume::Not(not_kept.to_owned()));
            }
            let next = run.steps.last().map(|last| last.step);
            if next.is_none_or(|last| step > last && Step::ALL.iter().any(|between| *between > last && *between < step))
            {
                let reached = next.map_or("none", Step::name);
                return Ok(Resume::Not(format!(
                    "The job cannot go on from {step}: the last step that ended well is {reached}."
                )));
            }
        }
        let new = Run::new(Plan {
            resume: from.map(|step| ResumeFrom {
                job: job.id,
                step,
                server: self.id,
            }),
            who,
            ..run.plan.clone()
        });
        let id = JobId::new();
        let renamed = |text: &str| text.replace(&job.id.to_string(), &id.to_string());
        let record = Job {
            id,
            created: Moment::now(),
            status: JobStatus::Creating,
            resultant_image_id: None,
            kubernetes_job: renamed(&job.kubernetes_job),
            kubernetes_service: renamed(&job.kubernetes_service),
            kubernetes_configmap: renamed(&job.kubernetes_configmap),
            kubernetes_pvc: renamed(&job.kubernetes_pvc),
            kubernetes_secret: job.kubernetes_secret.as_deref().map(renamed),
            ..job.clone()
        };
        if from.is_some() {
            // The files go to one job only.
            let taken = self
                .change(job.id, |run, _| {
                    if !run.kept {
                        return Err(Refused {
                            from: "without files",
                            arrow: "be gone on from",
                        });
                    }
                    run.kept = false;
                    Ok(())
                })
                .await?;
            if !matches!(taken, Some(Ok(_))) {
                return Ok(Resume::Not(not_kept.to_owned()));
            }
        }
        self.store.insert_run(&record, &new).await?;
        self.wake.launch.notify_one();
        Ok(Resume::New(Box::new(record)))
    }
}

/// Where and how a job runs, and why; or why it cannot.
fn place(job: &Job, own_kernel: bool, host: Arch, isolation: &IsolationSettings) -> Result<(How, String), Failure> {
    let arch = job.arch;
    if job.job_type == JobType::Customize {
        return Err(
            Failure::new("no_customize", "this version of Kiln does not carry out customize jobs").hint(
                "build another image from a recipe, or let another system carry jobs out (`run = false` in [jobs])",
            ),
        );
    }
    let how = if arch == host { How::Native } else { How::Emulated };
    let reason = match (how, own_kernel) {
        (How::Emulated, _) => format!("{arch} on a host that is {host}"),
        (How::Native, true) => "a recipe with require_dkms".to_owned(),
        (How::Native, false) => return Ok((how, format!("{arch}: native, in a sandbox of namespaces"))),
    };
    match isolation.foreign {
        ForeignIsolation::Vm => Err(Failure::new(
            "no_vm",
            format!("{reason} needs a virtual machine, and this host offers none"),
        )
        .hint(
            "set `foreign = \"namespace\"` in [isolation] to run such jobs on the host's own kernel; a recipe that loads \
             no kernel modules can also say `require_dkms: false`",
        )),
        ForeignIsolation::Namespace => Ok((
            how,
            format!(
                "{arch}: {}, in a sandbox of namespaces on the host's own kernel, as [isolation] allows for {reason}",
                how.name()
            ),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::PublicKeyId;

    fn job(arch: Arch, job_type: JobType) -> Job {
        Job {
            id: JobId::new(),
            created: Moment::from_micros(0),
            job_type,
            artifact_id: uuid::Uuid::nil(),
            public_key_id: PublicKeyId::new(),
            image_root_archive_name: "i".into(),
            enable_debug: false,
            build_env_size: 60,
            job_mem_size: 8,
            kernel_file_name: "vmlinuz".into(),
            initrd_file_name: "initrd".into(),
            kernel_parameters_file_name: "kernel-parameters".into(),
            ssh_containers: None,
            require_dkms: true,
            status: JobStatus::Creating,
            arch,
            resultant_image_id: None,
            kubernetes_job: String::new(),
            kubernetes_service: String::new(),
            kubernetes_configmap: String::new(),
            kubernetes_pvc: String::new(),
            kubernetes_secret: None,
            kubernetes_namespace: String::new(),
            remote_build_node: String::new(),
        }
    }

    #[test]
    fn foreign_and_dkms_jobs_need_a_machine_of_their_own() {
        for arch in Arch::ALL {
            for host in Arch::ALL {
                for own_kernel in [false, true] {
                    for foreign in [ForeignIsolation::Vm, ForeignIsolation::Namespace] {
                        let isolation = IsolationSettings {
                            foreign,
                            ..IsolationSettings::default()
                        };
                        let placed = place(&job(arch, JobType::Create), own_kernel, host, &isolation);
                        let needs_vm = arch != host || own_kernel;
                        match placed {
                            Err(failure) => {
                                assert_eq!(failure.code, "no_vm");
                                assert!(needs_vm && foreign == ForeignIsolation::Vm);
                            }
                            Ok((how, why)) => {
                                assert_eq!(how == How::Native, arch == host);
                                assert!(!needs_vm || foreign == ForeignIsolation::Namespace);
                                // What was lowered is said.
                                assert_eq!(why.contains("host's own kernel"), needs_vm, "{why}");
                            }
                        }
                    }
                }
            }
        }
        let customize = place(
            &job(Arch::X86_64, JobType::Customize),
            false,
            Arch::X86_64,
            &IsolationSettings::default(),
        );
        assert_eq!(customize.unwrap_err().code, "no_customize");
    }
}
