//! The classifier against what real runtimes said.
//!
//! Where a row says `ALL`, the text is word for word the same on containerd 1.6.36, 1.7.35 and
//! 2.4.2 behind each one's own lead. Digests are shortened, and names replaced by what stands
//! in braces.

use Code::{Cancelled, DeadlineExceeded, FailedPrecondition, InvalidArgument, Unknown};

use super::*;

const ALL: &[&str] = &["1.6.36", "1.7.35", "2.4.2"];
const OLD: &[&str] = &["1.6.36", "1.7.35"];
const V1_6: &[&str] = &["1.6.36"];
const V1_7: &[&str] = &["1.7.35"];
const V2_4: &[&str] = &["2.4.2"];
/// Debian's, with texts of its own here and there.
const V1_6_20: &[&str] = &["1.6.20"];

/// How far a pull had come, which decides what containerd puts before the cause.
#[derive(Clone, Copy)]
enum Stage {
    /// Before the pull, or without a lead for another reason.
    Bare,
    Resolve,
    Pull,
}
use Stage::{Bare, Pull, Resolve};

/// `{ref}`: the reference as containerd writes it; `{repo}`: the same without tag and digest;
/// `{host}`: the registry.
#[rustfmt::skip]
const RECORDED: &[(&[&str], Stage, Code, &str, Reason)] = &[
    (ALL, Resolve, Code::NotFound, "{ref}: not found", NotFound),
    (ALL, Pull, Code::NotFound, "failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:00eaa7 (application/vnd.oci.image.config.v1+json) from remote: not found", NotFound),
    (OLD, Pull, Code::NotFound, "no match for platform in manifest: not found", NoMatchingPlatform),
    (V2_4, Bare, Code::NotFound, "get image config descriptor: no match for platform in manifest sha256:75df34: not found", NoMatchingPlatform),
    // A page of HTML for every request.
    (OLD, Pull, Code::NotFound, "failed to unpack image on snapshotter overlayfs: unexpected media type text/html for sha256:a28d35: not found", Corrupt),
    (V2_4, Bare, Code::NotFound, "get image config descriptor: unexpected media type text/html for sha256:a28d35: not found", Corrupt),
    // For manifests alone.
    (ALL, Pull, Code::NotFound, "failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:a28d35 (text/html) from remote: not found", Corrupt),
    (ALL, Pull, Code::NotFound, "failed to copy: httpReadSeeker: failed open: could not fetch content descriptor sha256:015abd (application/json) from remote: not found", Corrupt),
    // For blobs alone.
    (OLD, Pull, Unknown, "failed to read expected number of bytes: unexpected EOF", Corrupt),
    (V2_4, Pull, Unknown, "short read: expected 173 bytes but got 26: unexpected EOF", Corrupt),
    // For tokens.
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unable to decode token response: invalid character '<' looking for beginning of value", Corrupt),
    (ALL, Pull, FailedPrecondition, "failed commit on ref \"layer-sha256:3b7fdc\": unexpected commit digest sha256:94a8d4, expected sha256:3b7fdc: failed precondition", Corrupt),
    (ALL, Pull, FailedPrecondition, "failed commit on ref \"manifest-sha256:d62d5b\": unexpected commit digest sha256:dc69bb, expected sha256:d62d5b: failed precondition", Corrupt),
    (OLD, Pull, Unknown, "wrong diff id calculated on extraction \"sha256:4aec8c\"", Corrupt),
    (V2_4, Pull, Unknown, "wrong diff id \"sha256:a46983\" calculated on extraction \"sha256:4aec8c\", desc \"sha256:e20819\"", Corrupt),
    // A layer that is no gzip.
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: unexpected EOF: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: unexpected EOF", Corrupt),
    // Other layers that are not what they should be: the texts of Go's gzip and tar, of unpigz, and of the zstd that containerd uses.
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: archive/tar: invalid tar header: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: archive/tar: invalid tar header", Corrupt),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: gzip: invalid checksum: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: gzip: invalid checksum", Corrupt),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: flate: corrupt input before offset 5: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: flate: corrupt input before offset 5", Corrupt),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: exit status 1: unpigz: skipping: <stdin>: corrupted -- crc32 mismatch: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: exit status 1: unpigz: skipping: <stdin>: corrupted -- crc32 mismatch", Corrupt),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: invalid input: magic number mismatch: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: invalid input: magic number mismatch", Corrupt),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: CRC check failed: unknown", Corrupt),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: CRC check failed", Corrupt),
    // Basic credentials: none, then wrong ones.
    (ALL, Resolve, Unknown, "pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials", Unauthorized),
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 401 Unauthorized", Unauthorized),
    (V1_6_20, Resolve, Unknown, "pulling from host {host} failed with status code [manifests 1]: 401 Unauthorized", Unauthorized),
    // Tokens.
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://{host}/token?scope=repository%3A{repo}%3Apull&service=s: 401 Unauthorized", Unauthorized),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch oauth token: unexpected status from POST request to http://{host}/token: 401 Unauthorized", Unauthorized),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://{host}/token?service=s: 400 Bad Request", Unauthorized),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: authorization server did not include a token in the response", Unauthorized),
    (ALL, Resolve, Unknown, "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed", Unauthorized),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://{host}/token?service=s: 429 Too Many Requests", RateLimited),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://{host}/token?service=s: 503 Service Unavailable", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: unexpected status from GET request to http://{host}/token?service=s: 404 Not Found", PullFailed),
    (V1_6, Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: Get \"http://no-such-host.invalid/t?scope=repository%3A{repo}%3Apull&service=s\": dial tcp: lookup no-such-host.invalid on 10.0.0.10:53: no such host", RegistryUnavailable),
    (&["1.7.35", "2.4.2"], Resolve, Unknown, "failed to authorize: failed to fetch anonymous token: Get \"http://no-such-host.invalid/t?scope=%5BREDACTED%5D&service=%5BREDACTED%5D\": dial tcp: lookup no-such-host.invalid on 10.0.0.10:53: no such host", RegistryUnavailable),
    // 403, with what the registry says.
    (OLD, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 403 Forbidden", Unauthorized),
    (V2_4, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 403 Forbidden\ndenied: x509: no such host, no space left on device", Unauthorized),
    (OLD, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status code http://{host}/v2/{repo}/blobs/sha256:2482eb: 403 Forbidden - Server message: denied: no space left on device", Unauthorized),
    (OLD, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status code http://{host}/v2/{repo}/blobs/sha256:0803b0: 401 Unauthorized - Server message: unauthorized", Unauthorized),
    (V2_4, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status from GET request to http://{host}/v2/{repo}/blobs/sha256:0803b0: 401 Unauthorized\nunauthorized", Unauthorized),
    // 429.
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 429 Too Many Requests", RateLimited),
    (OLD, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status code http://{host}/v2/{repo}/blobs/sha256:52a7d2: 429 Too Many Requests - Server message: toomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating", RateLimited),
    (V2_4, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status from GET request to http://{host}/v2/{repo}/blobs/sha256:52a7d2: 429 Too Many Requests\ntoomanyrequests: You have reached your pull rate limit. You may increase the limit by authenticating", RateLimited),
    // Server errors.
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 500 Internal Server Error", RegistryUnavailable),
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to https://{host}/v2/{repo}/manifests/1: 502 Bad Gateway", RegistryUnavailable),
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 520 ", RegistryUnavailable),
    (OLD, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status code http://{host}/v2/{repo}/blobs/sha256:515220: 503 Service Unavailable - Server message: unknown: server words: x509 denied no such host", RegistryUnavailable),
    (V2_4, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: unexpected status from GET request to http://{host}/v2/{repo}/blobs/sha256:515220: 503 Service Unavailable\nunknown: server words: x509 denied no such host", RegistryUnavailable),
    // The network.
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp 10.0.0.9:5999: connect: connection refused", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp: lookup denied.invalid on 10.0.0.10:53: no such host", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp: lookup denied.invalid on 10.0.0.10:53: server misbehaving", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp: lookup denied.invalid on 10.0.0.10:53: read udp 10.0.0.7:41000->10.0.0.10:53: i/o timeout", RegistryUnavailable),
    (V1_7, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp 10.0.0.9:443: i/o timeout", RegistryUnavailable),
    (&["1.6.36", "2.4.2"], Resolve, DeadlineExceeded, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": dial tcp 10.0.0.9:443: i/o timeout", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": net/http: TLS handshake timeout", RegistryUnavailable),
    (V2_4, Resolve, DeadlineExceeded, "failed to do request: Head \"http://{host}/v2/{repo}/manifests/1\": net/http: timeout awaiting response headers", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"http://{host}/v2/{repo}/manifests/1\": read tcp 10.0.0.7:41000->10.0.0.9:5000: read: connection reset by peer", RegistryUnavailable),
    (ALL, Resolve, Unknown, "failed to do request: Head \"http://{host}/v2/{repo}/manifests/1\": EOF", RegistryUnavailable),
    (ALL, Pull, Unknown, "failed to copy: httpReadSeeker: failed open: failed to do request: Get \"http://{host}/v2/{repo}/blobs/sha256:cb9ddd\": EOF", RegistryUnavailable),
    // TLS.
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": tls: failed to verify certificate: x509: certificate signed by unknown authority", Tls),
    (V1_6_20, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": x509: certificate signed by unknown authority", Tls),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": tls: failed to verify certificate: x509: certificate is valid for other.example, b.example, not denied.example", Tls),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": tls: failed to verify certificate: x509: cannot validate certificate for 10.0.0.9 because it doesn't contain any IP SANs", Tls),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-30T20:01:41Z is after 2020-02-01T00:00:00Z", Tls),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": http: server gave HTTP response to HTTPS client", Tls),
    (ALL, Resolve, Unknown, "failed to do request: Head \"https://{host}/v2/{repo}/manifests/1\": tls: first record does not look like a TLS handshake", Tls),
    (ALL, Resolve, Unknown, "unexpected status from HEAD request to http://{host}/v2/{repo}/manifests/1: 400 Bad Request", Tls),
    (V1_6_20, Resolve, Unknown, "pulling from host {host} failed with status code [manifests 1]: 400 Bad Request", Tls),
    // The disk.
    (ALL, Pull, Unknown, "failed to copy: write /var/lib/containerd/io.containerd.content.v1.content/ingest/70283a/data: no space left on device", NoSpace),
    (ALL, Pull, Unknown, "write /var/lib/containerd/io.containerd.content.v1.content/ingest/70283a/ref: no space left on device", NoSpace),
    (OLD, Pull, Unknown, "failed to extract layer sha256:cfa7ab: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: write /var/lib/containerd/tmpmounts/containerd-mount1/f2300: no space left on device: unknown", NoSpace),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:56465b) to overlayfs as \"extract-339262699-cGYP sha256:cfa7ab\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: write /var/lib/containerd/tmpmounts/containerd-mount1/f2300: no space left on device", NoSpace),
    (V2_4, Pull, Unknown, "failed to prepare extraction snapshot \"extract-1-F8Qr sha256:cfa7ab\": write /var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db: no space left on device", NoSpace),
    // The node cannot unpack a layer that is good: another download does not mend it.
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: failed to create temp dir: mkdir /var/lib/containerd/tmpmounts/containerd-mount1: read-only file system: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": failed to create temp dir: mkdir /var/lib/containerd/tmpmounts/containerd-mount1: read-only file system", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: failed to create temp dir: stat /var/lib/containerd/tmpmounts: no such file or directory: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": failed to create temp dir: stat /var/lib/containerd/tmpmounts: no such file or directory", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: failed to mount /var/lib/containerd/tmpmounts/containerd-mount1: permission denied: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": failed to mount /var/lib/containerd/tmpmounts/containerd-mount1: permission denied", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: mkdir /var/lib/containerd/tmpmounts/containerd-mount1/etc: permission denied: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: mkdir /var/lib/containerd/tmpmounts/containerd-mount1/etc: permission denied", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: failed to Lchown \"/var/lib/containerd/tmpmounts/containerd-mount1/x\" for UID 0, GID 0: lchown /var/lib/containerd/tmpmounts/containerd-mount1/x: operation not permitted: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: failed to Lchown \"/var/lib/containerd/tmpmounts/containerd-mount1/x\" for UID 0, GID 0: lchown /var/lib/containerd/tmpmounts/containerd-mount1/x: operation not permitted", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: write /var/lib/containerd/tmpmounts/containerd-mount1/x: input/output error: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: write /var/lib/containerd/tmpmounts/containerd-mount1/x: input/output error", PullFailed),
    (OLD, Pull, Unknown, "failed to extract layer sha256:8d611c: mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: open /var/lib/containerd/tmpmounts/containerd-mount1/x: file name too long: unknown", PullFailed),
    (V2_4, Pull, Unknown, "failed to extract layer (application/vnd.oci.image.layer.v1.tar+gzip sha256:0c69de) to overlayfs as \"extract-429242903-F8Qr sha256:8d611c\": mount callback failed on /var/lib/containerd/tmpmounts/containerd-mount1: open /var/lib/containerd/tmpmounts/containerd-mount1/x: file name too long", PullFailed),
    (ALL, Pull, Unknown, "failed to copy: open /var/lib/containerd/io.containerd.content.v1.content/ingest/70283a/data: permission denied: unknown", PullFailed),
    (ALL, Pull, Unknown, "failed to prepare extraction snapshot \"extract-1-F8Qr sha256:cfa7ab\": mkdir /var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots/new-1: permission denied: unknown", PullFailed),
    // A runtime that gives up by itself.
    (&["1.7.35", "2.4.2"], Pull, Cancelled, "context canceled", Stalled),
    (V1_7, Resolve, Cancelled, "failed to do request: Head \"http://{host}/v2/{repo}/manifests/1\": context canceled", Stalled),
    // Policies: from containerd's sources, the CRI's definition and CRI-O's library.
    (V2_4, Bare, Unknown, "image verifier bindir blocked pull of {ref} with digest sha256:d62d5b for reason: not signed, unauthorized: x509", Verification),
    (V2_4, Bare, Unknown, "blocking pull of {ref} with digest sha256:d62d5b: image verifier bindir returned error: connection refused", Verification),
    (&["CRI-O"], Bare, Unknown, "SignatureValidationFailed: Source image rejected: None of the signatures were accepted", Verification),
    // CRI-O, from its library's sources.
    (&["CRI-O"], Bare, Unknown, "reading manifest 1 in {repo}: manifest unknown", NotFound),
    (&["CRI-O"], Bare, Unknown, "reading manifest 1 in {repo}: unauthorized: authentication required", Unauthorized),
    (&["CRI-O"], Bare, Unknown, "reading manifest 1 in {repo}: denied: Permission denied for \"1\"", Unauthorized),
    (&["CRI-O"], Bare, Unknown, "reading manifest 1 in {repo}: denied: requested access to the resource is denied", Unauthorized),
    (&["CRI-O"], Bare, Unknown, "reading manifest 1 in {repo}: toomanyrequests: You have reached your pull rate limit.", RateLimited),
    (&["CRI-O"], Bare, Unknown, "choosing an image from manifest list docker://{ref}: no image found in image index for architecture \"arm64\", variant \"v8\", OS \"linux\"", NoMatchingPlatform),
    (&["CRI-O"], Bare, Unknown, "received unexpected HTTP status: 503 Service Unavailable", RegistryUnavailable),
    (&["CRI-O"], Bare, Unknown, "pinging container registry {host}: Get \"https://{host}/v2/\": dial tcp 10.0.0.9:443: connect: no route to host", RegistryUnavailable),
    // Names.
    (ALL, Bare, Unknown, "failed to parse image reference \"{ref}\": invalid reference format", InvalidReference),
    (V1_6, Bare, Unknown, "failed to parse image reference \"{ref}\": invalid reference format: repository name must be lowercase", InvalidReference),
    (ALL, Bare, Unknown, "failed to parse image reference \"{ref}\": repository name must not be more than 255 characters", InvalidReference),
    (ALL, Bare, Unknown, "failed to parse image reference \"{ref}\": invalid repository name ({ref}), cannot specify 64-byte hexadecimal strings", InvalidReference),
    // Credentials that are none.
    (OLD, Bare, Unknown, "illegal base64 data at input byte 0", Unauthorized),
    (V2_4, Resolve, Unknown, "failed to get credentials for \"{host}\": invalid decoded auth: \"alice\\x00\"", Unauthorized),
    // What has no reason of its own, or none that is the registry's.
    (OLD, Pull, Unknown, "no signatures", PullFailed),
    (V2_4, Pull, InvalidArgument, "schema 1 image manifests are no longer supported: invalid argument", PullFailed),
    (ALL, Resolve, Code::NotFound, "rejecting 9437186 byte manifest for {ref}: not found", PullFailed),
    (ALL, Resolve, Unknown, "failed to do request: Head \"/v2/{repo}/manifests/1\": stopped after 10 redirects", PullFailed),
    (ALL, Pull, Code::NotFound, "failed to unpack image on snapshotter stargz: snapshotter stargz was not found: not found", PullFailed),
    (ALL, Pull, Code::NotFound, "failed to get reader from content store: content digest sha256:3b7fdc: not found", PullFailed),
    (ALL, Pull, Unknown, "failed commit on ref \"layer-sha256:3b7fdc\": rename /var/lib/containerd/a /var/lib/containerd/b: no such file or directory", PullFailed),
];

/// References as asked for and as containerd writes them, with names that other texts are made of.
const REFERENCES: &[(&str, &str)] = &[
    ("reg.example:5000/lab/app:1", "reg.example:5000/lab/app:1"),
    (
        "reg.example:5000/x509/denied:429",
        "reg.example:5000/x509/denied:429",
    ),
    (
        "tls:443/no-such-host/unauthorized@sha256:94a8d4985eb0d15c57e5a722a6d752df317272f6545f9d07a27ed73703eb9281",
        "tls:443/no-such-host/unauthorized@sha256:94a8d4985eb0d15c57e5a722a6d752df317272f6545f9d07a27ed73703eb9281",
    ),
    ("x509:503", "docker.io/library/x509:503"),
    (
        "snapshot/toomanyrequests:latest",
        "docker.io/snapshot/toomanyrequests:latest",
    ),
];

/// The whole text of one version.
fn text(version: &str, stage: Stage, cause: &str, reference: &str) -> String {
    let (host, _) = reference.split_once('/').unwrap_or_default();
    let name = reference.split('@').next().unwrap_or_default();
    let repository = name
        .rsplit_once(':')
        .filter(|(_, tag)| !tag.contains('/'))
        .map_or(name, |(before, _)| before);
    let lead = match stage {
        Bare => "",
        Pull => "failed to pull and unpack image \"{ref}\": ",
        Resolve if version.starts_with('2') => {
            "failed to pull and unpack image \"{ref}\": failed to resolve image: "
        }
        Resolve => {
            "failed to pull and unpack image \"{ref}\": failed to resolve reference \"{ref}\": "
        }
    };
    format!("{lead}{cause}")
        .replace("{ref}", reference)
        .replace("{repo}", repository)
        .replace("{host}", host)
}

#[test]
fn every_recorded_text_has_its_reason_whatever_the_image_is_called() {
    for &(versions, stage, code, cause, reason) in RECORDED {
        for version in versions {
            for (asked, written) in REFERENCES {
                let text = text(version, stage, cause, written);
                let (found, message) = classify(code, &text, asked);
                assert_eq!(
                    found,
                    reason,
                    "{version}: {text}\nwords: {}",
                    words(&text, asked)
                );
                assert!(
                    !message.contains(['\n', '?']) && message.chars().count() <= 512,
                    "{message}"
                );
                assert!(!message.contains("alice"), "{message}");
            }
        }
    }
}

#[test]
fn the_reasons_that_a_pull_can_have_are_all_recorded() {
    // The others are the agent's own.
    let own = [
        Reason::Queued,
        Reason::Paused,
        Reason::Yielding,
        Reason::RefreshFailed,
        Reason::RuntimeUnavailable,
        Reason::Evicted,
        Reason::DiskPressure,
        Reason::PinBudget,
        Reason::InUse,
        Reason::Shared,
        Reason::WantedElsewhere,
        Reason::NotOwned,
    ];
    for reason in Reason::ALL {
        let recorded = RECORDED.iter().any(|row| row.4 == reason);
        assert_eq!(recorded, !own.contains(&reason), "{reason}");
    }
}

#[test]
fn a_message_says_first_what_it_comes_to_and_then_what_was_said() {
    let resolve = |version, cause| text(version, Resolve, cause, "reg.example/app:2");
    for (code, text, message) in [
        (
            Code::NotFound,
            resolve("1.7", "{ref}: not found"),
            "the registry has no such repository, tag or digest: reg.example/app:2: not found",
        ),
        (
            Code::Unknown,
            resolve(
                "2.4",
                "unexpected status from HEAD request to http://{host}/v2/app/manifests/2?ns=%5BREDACTED%5D: 403 Forbidden\ndenied: ask Bob",
            ),
            "the registry refuses: it wants credentials, or other ones: unexpected status from HEAD request to http://reg.example/v2/app/manifests/2: 403 Forbidden denied: ask Bob",
        ),
        (
            Code::Unknown,
            resolve(
                "1.6",
                "failed to do request: Head \"https://{host}/v2/app/manifests/2\": dial tcp 10.0.0.9:443: connect: connection refused",
            ),
            "the registry cannot be reached: Head \"https://reg.example/v2/app/manifests/2\": dial tcp 10.0.0.9:443: connect: connection refused",
        ),
        (Code::Unknown, "something else".to_owned(), "something else"),
        (
            Code::Unknown,
            String::new(),
            "the runtime gave no cause (code Unknown)",
        ),
        (
            Code::Cancelled,
            String::new(),
            "the runtime cancelled the pull because it made no progress",
        ),
    ] {
        assert_eq!(classify(code, &text, "reg.example/app:2").1, message);
    }
}

#[test]
fn a_lease_that_is_gone_is_nothing_that_the_registry_said() {
    for text in [
        "lease does not exist: not found",
        "failed to pull and unpack image \"reg.example/app:2\": unable to lease content: lease does not exist: not found",
    ] {
        assert!(says_no_lease(Code::NotFound, text));
    }
    assert!(!says_no_lease(
        Code::NotFound,
        "reg.example/app:2: not found"
    ));
    assert!(!says_no_lease(
        Code::Unknown,
        "the registry says that a lease does not exist"
    ));
}
