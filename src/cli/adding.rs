//! Options that add to a recipe's description, as those of kiwi do. Reads files with credentials.

use std::path::Path;

use clap::Args;
use kiln_records::{
    Code, Failure,
    additions::{PackageName, RepositoryLine, Wrong},
    job::JobOptions,
};

use super::values::Body;

/// The most bytes of a file that begins with a login.
const LONGEST_LOGIN: u64 = 64 << 10;

/// What is added to a recipe's description.
#[derive(Debug, Args)]
pub(super) struct Adding {
    /// A repository to add, as for kiwi: SOURCE,TYPE,ALIAS,PRIORITY,IMAGEINCLUDE,PACKAGE_GPGCHECK,{SIGNING_KEY;…},COMPONENTS,DISTRIBUTION,REPO_GPGCHECK,SOURCETYPE, of which the end may be left out; may be given several times.
    #[arg(long = "add-repo", value_name = "SOURCE,TYPE,…")]
    add_repos: Vec<String>,

    /// The login of the repository that is added at the same place of the order: USER:PASSWORD, or a file that begins with it.
    #[arg(long, value_name = "FILE")]
    add_repo_credentials: Vec<String>,

    /// Replace the first repository of the recipe that is in force, in the same form; what is empty stays.
    #[arg(long, value_name = "SOURCE,TYPE,…", conflicts_with = "ignore_repos")]
    set_repo: Option<String>,

    /// The login of that repository: USER:PASSWORD, or a file that begins with it.
    #[arg(long, value_name = "FILE", requires = "set_repo")]
    set_repo_credentials: Option<String>,

    /// Leave the recipe's repositories out.
    #[arg(long)]
    ignore_repos: bool,

    /// A package to install beside those of the recipe; may be given several times.
    #[arg(long = "add-package", value_name = "NAME")]
    add_packages: Vec<String>,

    /// A package for the beginning of the root; may be given several times.
    #[arg(long = "add-bootstrap-package", value_name = "NAME")]
    add_bootstrap_packages: Vec<String>,

    /// A package to uninstall at the end; may be given several times.
    #[arg(long = "delete-package", value_name = "NAME")]
    delete_packages: Vec<String>,
}

impl Adding {
    /// Adds them to the options of a job. What clap says of a wrong value has the value, which may have a password, so they are
    /// checked here.
    ///
    /// # Errors
    ///
    /// `usage`, with what kiwi expects.
    pub(super) fn apply(&self, options: JobOptions) -> Result<JobOptions, Failure> {
        if self.add_repo_credentials.len() > self.add_repos.len() {
            let why = "there are more --add-repo-credentials than --add-repo";
            return Err(Failure::new(Code::Usage, why));
        }
        let mut add_repos = Vec::with_capacity(self.add_repos.len());
        for (at, text) in self.add_repos.iter().enumerate() {
            let login = self.add_repo_credentials.get(at);
            add_repos.push(line("--add-repo", RepositoryLine::added(text), login)?);
        }
        let set_repo = self.set_repo.as_deref().map(|text| {
            let login = self.set_repo_credentials.as_ref();
            line("--set-repo", RepositoryLine::set(text), login)
        });
        Ok(JobOptions {
            ignore_repos: self.ignore_repos.then_some(true),
            set_repo: set_repo.transpose()?,
            add_repos: some(add_repos),
            add_packages: some(names("--add-package", &self.add_packages)?),
            add_bootstrap_packages: some(names("--add-bootstrap-package", &self.add_bootstrap_packages)?),
            delete_packages: some(names("--delete-package", &self.delete_packages)?),
            ..options
        })
    }

    /// Adds them to a request.
    ///
    /// # Errors
    ///
    /// As [`Self::apply`].
    pub(super) fn add_to(&self, body: Body) -> Result<Body, Failure> {
        let options = self.apply(JobOptions::default())?;
        let lines = |lines: Vec<RepositoryLine>| lines.iter().map(|line| line.as_str().to_owned()).collect::<Vec<_>>();
        let names = |names: Vec<PackageName>| names.iter().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
        Ok(body
            .set("ignore_repos", options.ignore_repos)
            .set("set_repo", options.set_repo.map(|line| line.as_str().to_owned()))
            .set("add_repos", options.add_repos.map(lines))
            .set("add_packages", options.add_packages.map(names))
            .set("add_bootstrap_packages", options.add_bootstrap_packages.map(names))
            .set("delete_packages", options.delete_packages.map(names)))
    }

    /// The addresses of the repositories.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        let lines = self.add_repos.iter().chain(&self.set_repo);
        lines.filter_map(|line| line.split(',').next())
    }
}

fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

fn names(option: &str, names: &[String]) -> Result<Vec<PackageName>, Failure> {
    let name = |name: &String| name.parse().map_err(|error| usage(option, &error));
    names.iter().map(name).collect()
}

/// A line with its login, if it has one.
fn line(option: &str, line: Result<RepositoryLine, Wrong>, login: Option<&String>) -> Result<RepositoryLine, Failure> {
    let line = line.map_err(|error| usage(option, &error))?;
    let Some(login) = login else { return Ok(line) };
    let file = Path::new(login);
    let text = if fs_err::metadata(file).is_ok_and(|found| !found.is_dir()) {
        kiln_files::read_given_text(file, LONGEST_LOGIN)
            .map_err(|error| Failure::io("cannot read the credentials", &error))?
    } else {
        login.clone()
    };
    let login = text.lines().next().unwrap_or_default();
    line.with_login(login).map_err(|error| usage(option, &error))
}

fn usage(option: &str, error: &Wrong) -> Failure {
    Failure::new(Code::Usage, format!("{option} {error}"))
}
