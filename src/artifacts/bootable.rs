//! Downloads the files with which an image boots, of a manifest that was verified. It reads S3, and writes to a directory.

use std::path::{Path, PathBuf};

use kiln_records::{
    ArtifactKind, Digests, Failure,
    set::{ImageFile, Proof},
};

use super::{ArtifactStore, Misplaced, ReadError};

/// The most that is read of kernel parameters, in bytes.
const MOST_PARAMETERS: usize = 64 * 1024;

/// The objects with which an image boots.
#[derive(Debug)]
pub struct BootSource<'p> {
    rootfs: &'p ImageFile,
    kernel: &'p ImageFile,
    initrd: &'p ImageFile,
    parameters: Option<&'p ImageFile>,
}

/// Why an image has no such objects.
#[derive(Debug, thiserror::Error)]
pub enum NoBootSource {
    /// It cannot boot, whatever is tried.
    #[error("{0}")]
    Never(String),
    /// S3 did not answer, or the files could not be written.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl From<Misplaced> for NoBootSource {
    fn from(misplaced: Misplaced) -> Self {
        Self::Never(misplaced.to_string())
    }
}

impl<'p> BootSource<'p> {
    /// The objects among those that a manifest names.
    ///
    /// # Errors
    ///
    /// When one of them is missing, or is there twice.
    pub fn of(proof: &'p Proof) -> Result<Self, NoBootSource> {
        let one = |kind: ArtifactKind| {
            let files = proof.files.iter();
            let mut of_kind = files.filter(|file| file.media_type.starts_with(kind.media_type()));
            match (of_kind.next(), of_kind.next()) {
                (_, Some(_)) => Err(NoBootSource::Never(format!("it has more than one {}", kind.key_name()))),
                (found, None) => Ok(found),
            }
        };
        let needed = |kind: ArtifactKind| {
            one(kind)?.ok_or_else(|| NoBootSource::Never(format!("it has no {}", kind.key_name())))
        };
        Ok(Self {
            rootfs: needed(ArtifactKind::Rootfs)?,
            kernel: needed(ArtifactKind::Kernel)?,
            initrd: needed(ArtifactKind::Initrd)?,
            parameters: one(ArtifactKind::BootParameters)?,
        })
    }

    /// Its files, with their names in a directory.
    fn files(&self) -> [(ArtifactKind, &'p ImageFile); 3] {
        [
            (ArtifactKind::Rootfs, self.rootfs),
            (ArtifactKind::Kernel, self.kernel),
            (ArtifactKind::Initrd, self.initrd),
        ]
    }
}

impl ArtifactStore {
    /// The sizes of the files, in bytes, as S3 has them.
    ///
    /// # Errors
    ///
    /// When one is not there, or S3 gives no answer.
    pub async fn sizes_of_boot(&self, source: &BootSource<'_>) -> Result<[u64; 3], NoBootSource> {
        let mut sizes = [0; 3];
        for ((_, file), size) in source.files().into_iter().zip(&mut sizes) {
            let (bucket, key) = self.place(&file.path)?;
            let found = self.size(bucket, key).await?;
            *size = found.ok_or_else(|| NoBootSource::Never(format!("{} is not in S3", file.path)))?;
        }
        Ok(sizes)
    }

    /// Downloads the files, of which none may have more bytes than given, into a directory. Returns their paths: root file
    /// system, kernel and initrd.
    ///
    /// # Errors
    ///
    /// When one differs from what its manifest says, or cannot be read or written.
    pub async fn download_boot(
        &self,
        source: &BootSource<'_>,
        sizes: [u64; 3],
        dir: &Path,
    ) -> Result<[PathBuf; 3], NoBootSource> {
        let mut paths = [const { PathBuf::new() }; 3];
        for (((kind, file), path), size) in source.files().into_iter().zip(&mut paths).zip(sizes) {
            let (bucket, key) = self.place(&file.path)?;
            *path = dir.join(kind.key_name());
            let digests = self.download_at_most(bucket, key, path, None, size).await?;
            must_match(file, &digests)?;
        }
        Ok(paths)
    }

    /// The kernel's parameters that an image brings along; empty if it brings none.
    ///
    /// # Errors
    ///
    /// When S3 gives no answer.
    pub async fn boot_parameters(&self, source: &BootSource<'_>) -> Result<String, NoBootSource> {
        let Some(file) = source.parameters else {
            return Ok(String::new());
        };
        match self.read_linked(&file.path, MOST_PARAMETERS).await {
            Ok(text) => Ok(String::from_utf8_lossy(&text.unwrap_or_default()).into_owned()),
            Err(ReadError::TooLarge(size)) => {
                Err(NoBootSource::Never(format!("its kernel parameters have {size} bytes")))
            }
            Err(ReadError::S3(failure)) => Err(failure.into()),
        }
    }
}

fn must_match(file: &ImageFile, found: &Digests) -> Result<(), NoBootSource> {
    let is_other = file
        .sha256
        .as_ref()
        .is_some_and(|sha256| !sha256.eq_ignore_ascii_case(&found.sha256))
        || file.size.is_some_and(|size| size != found.size);
    if is_other {
        let why = format!("{} is not what its manifest says", file.path);
        return Err(NoBootSource::Never(why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(kind: ArtifactKind, sha256: &str) -> ImageFile {
        ImageFile {
            name: kind.key_name().to_owned(),
            media_type: kind.media_type().to_owned(),
            path: format!("s3://boot-images/{}", kind.key_name()),
            sha256: Some(sha256.to_owned()),
            size: Some(3),
        }
    }

    #[test]
    fn an_image_boots_with_one_file_of_each_kind_that_is_as_its_manifest_says() {
        let mut proof = Proof {
            path: String::new(),
            sha256: String::new(),
            files: vec![file(ArtifactKind::Rootfs, "a"), file(ArtifactKind::Kernel, "b")],
        };
        let lacks = BootSource::of(&proof).unwrap_err().to_string();
        assert_eq!(lacks, "it has no initrd");
        proof.files.push(file(ArtifactKind::Initrd, "c"));
        assert!(BootSource::of(&proof).unwrap().parameters.is_none());
        proof.files.push(file(ArtifactKind::Kernel, "d"));
        assert!(
            BootSource::of(&proof)
                .unwrap_err()
                .to_string()
                .contains("more than one kernel")
        );

        let found = |size, sha256: &str| Digests {
            size,
            md5: String::new(),
            sha256: sha256.to_owned(),
        };
        must_match(&proof.files[0], &found(3, "A")).unwrap();
        must_match(&proof.files[0], &found(4, "a")).unwrap_err();
        must_match(&proof.files[0], &found(3, "b")).unwrap_err();
    }
}
