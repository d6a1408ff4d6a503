//! The key that secrets are sealed under, and sealing itself.
//!
//! The key is 256 random bits in a file outside the database (`secrets.key`, 0600). A value is sealed with
//! AES-256-GCM under a fresh nonce; tenant, name and version are its associated data, so that a row which was
//! copied to another tenant, name or version does not open (decision 0080). **Nothing here prints or logs a
//! key or a value.**

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use cofferdam_ambient::random::{secret_bytes, secret_hex};
use cofferdam_contracts::canonical::{digest_bytes, digest_of};
use cofferdam_contracts::id::{Digest, ObjectId, SecretName, SnapshotId, TenantId};
use cofferdam_contracts::secret::SecretValue;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use zeroize::Zeroizing;

/// Bytes of the key: the cipher's own width.
const KEY_BYTES: usize = 32;

/// Why this process has no key of secrets.
#[derive(Debug, thiserror::Error)]
pub enum VaultError {
    /// The file cannot be read or written.
    #[error("cannot use the secrets key {path}: {source}")]
    File {
        /// Where it is.
        path: String,
        /// Error of the file system for this path.
        #[source]
        source: io::Error,
    },
    /// Others than its owner may read it.
    #[error("{path} has the mode {mode:o}: others can read the secrets key; run chmod 600 {path}")]
    Open {
        /// Where it is.
        path: String,
        /// Its permission bits.
        mode: u32,
    },
    /// The file has something else in it.
    #[error("{path} is not a secrets key; copy it again from a host that has it")]
    Form {
        /// Where it is.
        path: String,
    },
}

/// The key of secrets, held in memory.
pub struct Vault {
    key: LessSafeKey,
    /// Derived from it, for what rows may know and nobody may guess.
    marks: hmac::Key,
    fingerprint: Digest,
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Vault")
    }
}

impl Vault {
    /// Reads the key of a file; `None` where there is no such file.
    ///
    /// # Errors
    /// [`VaultError`]: the file cannot be read, or is no key.
    pub fn read(path: &Path) -> Result<Option<Self>, VaultError> {
        let shown = || path.display().to_string();
        // The same descriptor is judged and read.
        let opened = fs::File::open(path).and_then(|file| {
            let mode = file.metadata()?.permissions().mode() & 0o777;
            Ok((mode, io::read_to_string(file)?))
        });
        match opened {
            Ok((mode, _)) if mode & 0o077 != 0 => Err(VaultError::Open { path: shown(), mode }),
            Ok((_, text)) => {
                let text = Zeroizing::new(text);
                Self::parse(&text).map(Some).ok_or_else(|| VaultError::Form { path: shown() })
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(VaultError::File { path: shown(), source }),
        }
    }

    /// Makes a key in a file, unless another process was faster: the one that is there.
    ///
    /// # Errors
    /// [`VaultError`]: the file cannot be written or read.
    pub fn make(path: &Path) -> Result<Self, VaultError> {
        let fault = |source| VaultError::File { path: path.display().to_string(), source };
        let draft = path.with_extension(format!("new-{}", std::process::id()));
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&draft)?;
            file.write_all(Zeroizing::new(secret_hex(KEY_BYTES)).as_bytes())?;
            file.sync_all()?;
            // A link is made only where no file is: two that start at once end up with one key.
            let linked = fs::hard_link(&draft, path);
            fs::remove_file(&draft)?;
            match linked {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                _ => Ok(()),
            }
        };
        write().map_err(fault)?;
        Self::read(path)?.ok_or_else(|| fault(io::ErrorKind::NotFound.into()))
    }

    /// Reads the key as it stands in its file: hexadecimal.
    fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(hex::decode(text.trim()).ok()?);
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).ok()?);
        let named = Zeroizing::new([b"cofferdam secrets key\n".as_slice(), &bytes].concat());
        let master = hmac::Key::new(hmac::HMAC_SHA256, &bytes);
        let derived = hmac::sign(&master, b"cofferdam marks key 1");
        let marks = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        Some(Self { key, marks, fingerprint: digest_bytes(&named) })
    }

    /// What rows know the key by.
    #[must_use]
    pub fn fingerprint(&self) -> &Digest {
        &self.fingerprint
    }

    /// Nonce, ciphertext and tag; `None` where the cipher refuses the length.
    pub(crate) fn seal(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        version: u32,
        value: &SecretValue,
    ) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = secret_bytes();
        let mut text = Zeroizing::new(value.expose().to_vec());
        let bound = Aad::from(bound(tenant, name, version));
        let unique = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(unique, bound, &mut text).ok()?;
        Some([&nonce[..], &text, tag.as_ref()].concat())
    }

    /// The value of a sealed version; `None` where it was sealed for another tenant, name or version, under
    /// another key, or was altered.
    pub(crate) fn open(
        &self,
        tenant: &TenantId,
        name: &SecretName,
        version: u32,
        sealed: &[u8],
    ) -> Option<SecretValue> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = Zeroizing::new(text.to_vec());
        let bound = Aad::from(bound(tenant, name, version));
        let opened = self.key.open_in_place(nonce, bound, &mut text).ok()?;
        SecretValue::parse(opened.to_vec()).ok()
    }
}

impl Vault {
    /// The key of a snapshot's file, sealed for its tenant; `None` where the cipher refuses.
    #[must_use]
    pub fn seal_key(
        &self,
        tenant: &TenantId,
        snapshot: &SnapshotId,
        key: &FileKey,
    ) -> Option<Vec<u8>> {
        self.seal_file_key(kept(tenant, snapshot), key)
    }

    /// The key of a snapshot's file; `None` where it was sealed for another tenant or snapshot, under another key, or was
    /// altered.
    #[must_use]
    pub fn open_key(
        &self,
        tenant: &TenantId,
        snapshot: &SnapshotId,
        sealed: &[u8],
    ) -> Option<FileKey> {
        self.open_file_key(kept(tenant, snapshot), sealed)
    }

    /// The key of an object of the artifact store, sealed for its tenant; `None` where the cipher refuses.
    pub(crate) fn seal_object_key(
        &self,
        tenant: &TenantId,
        object: &ObjectId,
        key: &FileKey,
    ) -> Option<Vec<u8>> {
        self.seal_file_key(stored(tenant, object), key)
    }

    /// The key of an object; `None` where it was sealed for another tenant or object, under another key, or was altered.
    pub(crate) fn open_object_key(
        &self,
        tenant: &TenantId,
        object: &ObjectId,
        sealed: &[u8],
    ) -> Option<FileKey> {
        self.open_file_key(stored(tenant, object), sealed)
    }

    fn seal_file_key(&self, of: Vec<u8>, key: &FileKey) -> Option<Vec<u8>> {
        let nonce: [u8; NONCE_LEN] = secret_bytes();
        let mut text = Zeroizing::new(key.to_vec());
        let unique = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(unique, Aad::from(of), &mut text).ok()?;
        Some([&nonce[..], &text, tag.as_ref()].concat())
    }

    fn open_file_key(&self, of: Vec<u8>, sealed: &[u8]) -> Option<FileKey> {
        let (nonce, text) = sealed.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut text = Zeroizing::new(text.to_vec());
        let opened = self.key.open_in_place(nonce, Aad::from(of), &mut text).ok()?;
        Some(Zeroizing::new(<[u8; KEY_BYTES]>::try_from(&*opened).ok()?))
    }
}

impl Vault {
    /// What a row knows a tenant's text by, where that may have secrets in it: equal texts of one tenant have one mark, and
    /// without this key nobody tells which text a mark is of.
    #[must_use]
    pub fn mark(&self, tenant: &TenantId, text: &[u8]) -> Digest {
        let mut signing = hmac::Context::with_key(&self.marks);
        signing.update(format!("cofferdam mark 1\n{tenant}\n").as_bytes());
        signing.update(text);
        digest_of(signing.sign().as_ref())
    }
}

/// The key of one file: 256 random bits.
pub type FileKey = Zeroizing<[u8; KEY_BYTES]>;

/// What a sealed key belongs to.
fn kept(tenant: &TenantId, snapshot: &SnapshotId) -> Vec<u8> {
    format!("cofferdam snapshot 1\n{tenant}\n{snapshot}").into_bytes()
}

/// What the sealed key of an object belongs to.
fn stored(tenant: &TenantId, object: &ObjectId) -> Vec<u8> {
    format!("cofferdam stored object 1\n{tenant}\n{object}").into_bytes()
}

/// What a sealed value belongs to. No tenant and no name has a line break.
fn bound(tenant: &TenantId, name: &SecretName, version: u32) -> Vec<u8> {
    format!("cofferdam secret 1\n{tenant}\n{name}\n{version}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vault(digit: char) -> Vault {
        Vault::parse(&digit.to_string().repeat(64)).unwrap()
    }

    #[test]
    fn a_sealed_value_opens_for_its_tenant_name_and_version_alone() {
        let tenant = |text: &str| TenantId::parse(text).unwrap();
        let name = |text: &str| SecretName::parse(text).unwrap();
        let value = SecretValue::parse(b"hunter2-hunter2".to_vec()).unwrap();
        let own = vault('1');
        let sealed = own.seal(&tenant("acme"), &name("git"), 3, &value).unwrap();
        assert!(!sealed.windows(7).any(|part| part == b"hunter2"));
        let opens = |vault: &Vault, who: &str, what: &str, version, sealed: &[u8]| {
            vault.open(&tenant(who), &name(what), version, sealed).is_some()
        };
        assert!(opens(&own, "acme", "git", 3, &sealed));
        assert!(!opens(&own, "bravo", "git", 3, &sealed));
        assert!(!opens(&own, "acme", "npm", 3, &sealed));
        assert!(!opens(&own, "acme", "git", 4, &sealed));
        assert!(!opens(&vault('2'), "acme", "git", 3, &sealed));
        for at in 0..sealed.len() {
            let mut altered = sealed.clone();
            altered[at] ^= 1;
            assert!(!opens(&own, "acme", "git", 3, &altered), "{at}");
        }
        assert!(!opens(&own, "acme", "git", 3, &sealed[..11]));
        let again = own.seal(&tenant("acme"), &name("git"), 3, &value).unwrap();
        assert_ne!(sealed, again, "each sealing has its own nonce");
    }

    #[test]
    fn the_key_of_a_snapshot_opens_for_its_tenant_alone() {
        let tenant = |text: &str| TenantId::parse(text).unwrap();
        let snapshot = |letter: &str| SnapshotId::parse(&letter.repeat(20)).unwrap();
        let key = FileKey::new([7; KEY_BYTES]);
        let sealed = vault('1').seal_key(&tenant("acme"), &snapshot("a"), &key).unwrap();
        assert_eq!(sealed.len(), 60);
        let opens = |digit, who: &str, what: &str, sealed: &[u8]| {
            vault(digit).open_key(&tenant(who), &snapshot(what), sealed)
        };
        assert_eq!(opens('1', "acme", "a", &sealed), Some(key));
        assert!(opens('1', "bravo", "a", &sealed).is_none());
        assert!(opens('1', "acme", "b", &sealed).is_none());
        assert!(opens('2', "acme", "a", &sealed).is_none());
        assert!(opens('1', "acme", "a", &sealed[..59]).is_none());
    }

    #[test]
    fn the_key_of_an_object_opens_for_its_tenant_and_object_alone() {
        let tenant = |text: &str| TenantId::parse(text).unwrap();
        let object = |digit: &str| ObjectId::parse(&digit.repeat(32)).unwrap();
        let key = FileKey::new([7; KEY_BYTES]);
        let sealed = vault('1').seal_object_key(&tenant("acme"), &object("a"), &key).unwrap();
        assert_eq!(sealed.len(), 60, "as a check of its table wants");
        let opens = |digit, who: &str, what: &str| {
            vault(digit).open_object_key(&tenant(who), &object(what), &sealed)
        };
        assert_eq!(opens('1', "acme", "a"), Some(key));
        assert!(opens('1', "bravo", "a").is_none() && opens('1', "acme", "b").is_none());
        assert!(opens('2', "acme", "a").is_none());
        let snapshot = SnapshotId::parse(&"a".repeat(20)).unwrap();
        assert!(vault('1').open_key(&tenant("acme"), &snapshot, &sealed).is_none());
    }

    #[test]
    fn a_mark_is_of_one_tenant_text_and_key() {
        let mark =
            |digit, who: &str, text: &[u8]| vault(digit).mark(&TenantId::parse(who).unwrap(), text);
        let own = mark('1', "acme", b"a");
        assert_eq!(own, mark('1', "acme", b"a"));
        let others = [mark('1', "bravo", b"a"), mark('1', "acme", b"b"), mark('2', "acme", b"a")];
        assert!(!others.contains(&own));
    }

    #[test]
    fn a_key_file_is_the_owners_alone_and_made_once() {
        let dir = std::env::temp_dir().join(format!("cofferdam-vault-{}", secret_hex(8)));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("secrets.key");
        assert!(Vault::read(&path).unwrap().is_none());
        let made = Vault::make(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Vault::make(&path).unwrap().fingerprint(), made.fingerprint());
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no draft is left");
        for mode in [0o644, 0o640, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Vault::read(&path).unwrap_err().to_string();
            assert!(
                refused.contains("others can read") && refused.contains("chmod 600"),
                "{refused}"
            );
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "no key").unwrap();
        assert!(matches!(Vault::read(&path), Err(VaultError::Form { .. })));
        assert_eq!(format!("{made:?}"), "Vault");
        fs::remove_dir_all(&dir).unwrap();
    }
}
