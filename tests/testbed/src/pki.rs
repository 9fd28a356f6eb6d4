//! Certificates: the lab's own authority and what it signs.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

/// A certificate authority.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: Vec<u8>,
    dir: PathBuf,
}

/// The files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The certificate (PEM).
    pub certificate: PathBuf,
    /// Its private key (PEM, PKCS #8).
    pub key: PathBuf,
}

impl Authority {
    pub(crate) fn make(dir: &Path, name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        fs::write(dir.join("ca.crt"), certificate.pem())?;
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate: certificate.der().to_vec(),
            dir: dir.to_owned(),
        })
    }

    /// The authority's certificate (PEM).
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.dir.join("ca.crt")
    }

    pub(crate) fn der(&self) -> &[u8] {
        &self.certificate
    }

    /// A certificate for a server at these addresses.
    pub fn server(&self, name: &str, addresses: &[IpAddr]) -> Result<Identity> {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()])?;
        params.distinguished_name.push(DnType::CommonName, name);
        params
            .subject_alt_names
            .extend(addresses.iter().copied().map(SanType::IpAddress));
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(name, &params)
    }

    /// A certificate for a client; Kubernetes takes the common name for the user and the organisation for the group.
    pub fn client(&self, file: &str, user: &str, group: &str) -> Result<Identity> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, &params)
    }

    fn sign(&self, file: &str, params: &CertificateParams) -> Result<Identity> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let identity = Identity {
            certificate: self.dir.join(format!("{file}.crt")),
            key: self.dir.join(format!("{file}.key")),
        };
        fs::write(&identity.certificate, certificate.pem())?;
        fs::write(&identity.key, key.serialize_pem())?;
        Ok(identity)
    }
}

/// A key pair that signs and checks the tokens of service accounts: the files of the private and of the public key.
pub(crate) fn token_keys(dir: &Path) -> Result<(PathBuf, PathBuf)> {
    let key = KeyPair::generate()?;
    let (private, public) = (dir.join("tokens.key"), dir.join("tokens.pub"));
    fs::write(&private, key.serialize_pem())?;
    fs::write(&public, key.public_key_pem())?;
    Ok((private, public))
}
