//! Signs statements, by a key in a file or by the site's own command, which may ask a hardware token. Reads a key file,
//! and runs that command.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    process::Command,
    time::timeout,
};

use super::{
    Envelope,
    envelope::signed_bytes,
    key::{BadKey, PrivateKey, PublicKey},
};

/// The time that the command gets.
const PATIENCE: Duration = Duration::from_mins(1);

/// The most bytes of a signature.
const LONGEST_SIGNATURE: u64 = 16 << 10;

/// Signs.
#[derive(Debug)]
pub struct Signer {
    how: How,
    public: PublicKey,
}

#[derive(Debug)]
enum How {
    Key(PrivateKey),
    Command(Vec<String>),
}

/// Why there is no signature.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// The command cannot be run.
    #[error("cannot run `{0}`: {1}")]
    NotRun(String, std::io::Error),
    /// The command failed.
    #[error("`{0}` failed: {1}")]
    Failed(String, ExitStatus),
    /// The command takes too long.
    #[error("`{0}` gave no signature within {PATIENCE:?}")]
    Late(String),
    /// What it gave is no signature by the public key.
    #[error("what `{0}` gave is no signature by the key {1}")]
    NotBy(String, String),
    /// The key in the file does not sign.
    #[error("the key cannot sign")]
    Key,
}

impl Signer {
    /// A signer with the private key in a file.
    ///
    /// # Errors
    ///
    /// When there is no key.
    pub fn with_key(path: &Path) -> Result<Self, BadKey> {
        let (key, public) = PrivateKey::read(path)?;
        Ok(Self {
            how: How::Key(key),
            public,
        })
    }

    /// A signer by a command: it reads the bytes to sign from its standard input, and writes the signature (raw for
    /// Ed25519, DER for ECDSA). It is believed only if the public key in a file confirms it.
    ///
    /// # Errors
    ///
    /// When there is no key.
    pub fn with_command(command: Vec<String>, public: &Path) -> Result<Self, BadKey> {
        Ok(Self {
            how: How::Command(command),
            public: PublicKey::read(public)?,
        })
    }

    /// The public half of its key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Signs a payload.
    ///
    /// # Errors
    ///
    /// When there is no signature that the public key confirms.
    pub async fn sign(&self, payload_type: &str, payload: &[u8]) -> Result<Envelope, SigningError> {
        let message = signed_bytes(payload_type, payload);
        let signature = match &self.how {
            How::Key(key) => key.sign(&message).ok_or(SigningError::Key)?,
            How::Command(command) => {
                let name = || command.first().cloned().unwrap_or_default();
                let ran = timeout(PATIENCE, run(command, &message)).await;
                let signature = ran.map_err(|_| SigningError::Late(name()))??;
                if !self.public.has_signed(&message, &signature) {
                    return Err(SigningError::NotBy(name(), self.public.id().to_owned()));
                }
                signature
            }
        };
        Ok(Envelope::new(payload_type, payload, &self.public, &signature))
    }
}

async fn run(command: &[String], message: &[u8]) -> Result<Vec<u8>, SigningError> {
    let (name, arguments) = command.split_first().map_or(("", &[][..]), |(name, rest)| (name, rest));
    let not_run = |error| SigningError::NotRun(name.to_owned(), error);
    let mut child = Command::new(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(not_run)?;
    let (mut input, mut output) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut input) = input.take() {
            // A command that does not read all of it is judged by its signature.
            let _ = input.write_all(message).await;
        }
    };
    let read = async {
        let mut bytes = Vec::new();
        if let Some(output) = output.take() {
            output
                .take(LONGEST_SIGNATURE)
                .read_to_end(&mut bytes)
                .await
                .map_err(not_run)?;
        }
        Ok(bytes)
    };
    let ((), signature) = tokio::join!(write, read);
    let status = child.wait().await.map_err(not_run)?;
    if !status.success() {
        return Err(SigningError::Failed(name.to_owned(), status));
    }
    signature
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::origin::new_keys::{key_pair, openssl};

    const ED25519: [&str; 2] = ["-algorithm", "ed25519"];

    fn shell(script: String) -> Vec<String> {
        vec!["sh".to_owned(), "-c".to_owned(), script]
    }

    #[tokio::test]
    async fn a_command_signs_and_is_believed_only_if_the_public_key_agrees() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, public) = key_pair(dir.path(), "one", &ED25519);
        let (other, _) = key_pair(dir.path(), "other", &ED25519);
        let to_sign = dir.path().join("to-sign");
        let sign = |key: &Path| {
            let (at, key) = (to_sign.display(), key.display());
            shell(format!(
                "cat > {at} && openssl pkeyutl -sign -rawin -inkey {key} -in {at}"
            ))
        };
        let signer = |command| Signer::with_command(command, &public).unwrap();
        let good = signer(sign(&secret));
        let envelope = good.sign("a/b", b"payload").await.unwrap();
        assert_eq!(envelope.open("a/b", good.public()).unwrap(), b"payload");
        assert!(envelope.open("a/c", good.public()).is_err());

        let failed = async |command| signer(command).sign("a/b", b"payload").await.unwrap_err();
        assert!(matches!(failed(sign(&other)).await, SigningError::NotBy(..)));
        assert!(matches!(
            failed(shell("cat > /dev/null".to_owned())).await,
            SigningError::NotBy(..)
        ));
        assert!(matches!(
            failed(shell("yes".to_owned())).await,
            SigningError::Failed(..) | SigningError::NotBy(..)
        ));
        assert!(matches!(
            failed(shell("exit 3".to_owned())).await,
            SigningError::Failed(..)
        ));
        assert!(matches!(
            failed(vec!["/no/such".to_owned()]).await,
            SigningError::NotRun(..)
        ));
    }

    /// SoftHSM is a token in files. The script is the one that operators are given.
    #[tokio::test]
    async fn a_key_in_a_pkcs11_token_signs() {
        let dir = tempfile::tempdir().unwrap();
        let script = r#"
            cd "$1"
            mkdir tokens
            echo "directories.tokendir = $PWD/tokens" > softhsm2.conf
            export SOFTHSM2_CONF=$PWD/softhsm2.conf PIN=1234
            printf %s "$PIN" > pin
            echo wrong > wrong-pin
            module=$(find /usr/lib /usr/lib64 -name libsofthsm2.so -print -quit)
            ln -s "$module" module.so
            softhsm2-util --init-token --free --label kiln --pin "$PIN" --so-pin 5678
            pkcs11-tool --module ./module.so --login --pin env:PIN --keypairgen --key-type EC:prime256v1 --id 01
            pkcs11-tool --module ./module.so --read-object --type pubkey --id 01 --output-file public.der
            openssl pkey -pubin -inform DER -in public.der -out public.pem"#;
        let at = dir.path().to_str().unwrap();
        let made = std::process::Command::new("sh")
            .args(["-euc", script, "sh", at])
            .output();
        let made = made.unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let signer = |pin: &str| {
            let sign = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/sign-with-pkcs11.sh");
            let in_dir = |name: &str| format!("{at}/{name}");
            let command = [
                "env".to_owned(),
                format!("SOFTHSM2_CONF={at}/softhsm2.conf"),
                sign.to_owned(),
                in_dir("module.so"),
                "01".to_owned(),
                in_dir(pin),
            ];
            Signer::with_command(command.to_vec(), &dir.path().join("public.pem")).unwrap()
        };
        let good = signer("pin");
        let envelope = good.sign("a/b", b"payload").await.unwrap();
        assert_eq!(envelope.open("a/b", good.public()).unwrap(), b"payload");
        let failed = signer("wrong-pin").sign("a/b", b"payload").await.unwrap_err();
        assert!(matches!(failed, SigningError::Failed(..)), "{failed}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, public) = key_pair(dir.path(), "one", &ED25519);
        let rsa = dir.path().join("rsa");
        openssl(&["genpkey", "-algorithm", "RSA", "-out", rsa.to_str().unwrap()]);
        for path in [&public, &rsa, &dir.path().join("none")] {
            assert!(Signer::with_key(path).is_err(), "{}", path.display());
        }
        for path in [&secret, &rsa] {
            assert!(PublicKey::read(path).is_err(), "{}", path.display());
        }
    }
}
