//! Where the records of a test are, and records to put there.

use std::{collections::BTreeMap, path::PathBuf};

use kiln::store::{Collection, Query, Record, SharedStore, Side, StoreError, open};
use kiln_records::{
    Image, ImageId, Job, JobId, JobStatus, JobType, Link, LinuxDistribution, Moment, PublicKey, PublicKeyId, Recipe,
    RecipeId, RecipeType, TemplateValue,
    arch::Arch,
    job::{Connection, SshContainer},
};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tempfile::TempDir;
use uuid::Uuid;

use crate::support::postgres::Server;

/// Runs each of these functions on an empty place of each kind.
macro_rules! on_both {
    ($($test:ident),+ $(,)?) => {
        mod on_sqlite {
            $(#[test(threads = 2)]
            async fn $test() {
                super::$test(&$crate::store::place::Place::sqlite()).await;
            })+
        }
        mod on_postgres {
            $(#[test(threads = 2)]
            async fn $test() {
                super::$test(&$crate::store::place::Place::postgres()).await;
            })+
        }
    };
}

/// A database of one test.
pub enum Place {
    Sqlite(TempDir),
    Postgres(String),
}

impl Place {
    pub fn sqlite() -> Self {
        Self::Sqlite(tempfile::tempdir().unwrap())
    }

    pub fn postgres() -> Self {
        Self::Postgres(Server::shared().new_database())
    }

    /// The file, if it is one.
    pub fn file(&self) -> PathBuf {
        match self {
            Self::Sqlite(dir) => dir.path().join("records.sqlite"),
            Self::Postgres(_) => panic!("a PostgreSQL database is no file"),
        }
    }

    pub async fn try_open(&self) -> Result<SharedStore, StoreError> {
        match self {
            Self::Sqlite(_) => open(self.file().to_str().unwrap()).await,
            Self::Postgres(url) => open(url).await,
        }
    }

    pub async fn open(&self) -> SharedStore {
        self.try_open().await.unwrap()
    }

    /// Says something to the database past the store.
    pub async fn execute(&self, sql: &'static str) {
        match self {
            Self::Sqlite(_) => {
                let url = format!("sqlite://{}", self.file().display());
                let mut connection = SqliteConnection::connect(&url).await.unwrap();
                sqlx::query(sql).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
            Self::Postgres(url) => {
                let mut connection = PgConnection::connect(url).await.unwrap();
                sqlx::query(sql).execute(&mut connection).await.unwrap();
                connection.close().await.unwrap();
            }
        }
    }
}

pub fn recipes(store: &SharedStore) -> &dyn Collection<Recipe> {
    &**store
}

pub fn images(store: &SharedStore) -> &dyn Collection<Image> {
    &**store
}

pub fn public_keys(store: &SharedStore) -> &dyn Collection<PublicKey> {
    &**store
}

pub fn recipe(name: &str) -> Recipe {
    let id = RecipeId::new();
    Recipe {
        id,
        created: Moment::from_micros(1_700_000_000_123_456),
        link: Some(Link::s3("ims", &format!("recipes/{id}/recipe.tar.gz"), "etag-of-it")),
        recipe_type: RecipeType::KiwiNg,
        linux_distribution: LinuxDistribution::Sles15,
        name: name.to_owned(),
        arch: Arch::Aarch64,
        require_dkms: true,
        template_dictionary: Some(vec![
            TemplateValue {
                key: "B".to_owned(),
                value: "2 \"quoted\" \\ ü".to_owned(),
            },
            TemplateValue {
                key: "A".to_owned(),
                value: String::new(),
            },
        ]),
        twins: None,
        cache: None,
        reproducible: None,
        source_date_epoch: None,
        locked: None,
        profiles: None,
        deleted: None,
    }
}

pub fn image(name: &str) -> Image {
    let id = ImageId::new();
    Image {
        id,
        created: Moment::from_micros(1_700_000_000_000_000),
        link: Some(Link::s3("boot-images", &format!("{id}/manifest.json"), "")),
        name: name.to_owned(),
        arch: Arch::X86_64,
        metadata: BTreeMap::from([("project".to_owned(), "näme\n\0".to_owned())]),
        deleted: None,
    }
}

pub fn public_key(name: &str) -> PublicKey {
    PublicKey {
        id: PublicKeyId::new(),
        created: Moment::from_micros(-1),
        name: name.to_owned(),
        public_key: "ssh-ed25519 AAAA me@here\n".to_owned(),
        deleted: None,
    }
}

pub fn job(name: &str) -> Job {
    let id = JobId::new();
    Job {
        id,
        created: Moment::from_micros(1_700_000_000_000_001),
        job_type: JobType::Customize,
        artifact_id: Uuid::new_v4(),
        public_key_id: PublicKeyId::new(),
        image_root_archive_name: name.to_owned(),
        enable_debug: false,
        build_env_size: 60,
        job_mem_size: u32::MAX,
        kernel_file_name: "vmlinuz".to_owned(),
        initrd_file_name: "initrd".to_owned(),
        kernel_parameters_file_name: "kernel-parameters".to_owned(),
        ssh_containers: Some(vec![SshContainer {
            name: None,
            jail: true,
            status: "pending".to_owned(),
            connection_info: BTreeMap::from([(
                "customer_access".to_owned(),
                Connection {
                    host: "h".to_owned(),
                    port: 22,
                },
            )]),
        }]),
        require_dkms: true,
        status: JobStatus::Creating,
        arch: Arch::X86_64,
        resultant_image_id: None,
        kubernetes_job: format!("cray-ims-{id}-customize"),
        kubernetes_service: format!("cray-ims-{id}-service"),
        kubernetes_configmap: format!("cray-ims-{id}-configmap"),
        kubernetes_pvc: format!("cray-ims-{id}-job-claim"),
        kubernetes_secret: None,
        kubernetes_namespace: "ims".to_owned(),
        remote_build_node: String::new(),
    }
}

/// Everything on one side, in order.
pub async fn all<R: Record>(collection: &dyn Collection<R>, side: Side) -> Vec<R> {
    let stored = collection
        .page(
            side,
            &Query {
                limit: u32::MAX,
                ..Query::default()
            },
        )
        .await
        .unwrap();
    stored.into_iter().map(|stored| stored.record).collect()
}
