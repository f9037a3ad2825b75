package import Basics
import JOSE

/// The result of verifying an identity token.
package enum IdentityDecision: Sendable, Equatable {
    case verified(VerifiedIdentity)
    case refused(IdentityRefusal)
    /// The key set lacks its key: ask ``KeySetCache`` and verify again; `unknown-key` if it lacks it still. Nothing is verified.
    case needsKey(kid: String)
}

/// One step of the verification of an identity token, as `siwad verify` explains it.
package struct IdentityCheck: Sendable, Equatable {
    /// In the order in which the checks are performed.
    package enum Name: String, Sendable, Hashable, CaseIterable {
        case token
        case algorithm
        case key
        case signature
        case claims
        /// It has no `events`, so that it is not a notification.
        case kind
        case issuer
        case audience
        case times
        case age
        case nonce
        case code
        case accessToken = "access-token"
        case subject
    }

    package let name: Name
    /// nil: there was nothing to compare with. The first check that fails ends the verification.
    package let passed: Bool?
    /// What was found. It may contain claims of the token.
    package let detail: String
}

/// Verifies identity tokens with the same keys and the same strictness as ``NotificationVerifier``, and without I/O.
///
/// Keeps the prepared keys of the current set, so it belongs to one thread: create one for each.
package final class IdentityVerifier {
    package let policy: IdentityPolicy
    private let prepared = PreparedKeys()

    /// What was found before the decision.
    private struct Findings {
        var checks: [IdentityCheck] = []

        mutating func pass(_ name: IdentityCheck.Name, _ detail: String) {
            checks.append(IdentityCheck(name: name, passed: true, detail: detail))
        }

        mutating func skip(_ name: IdentityCheck.Name, _ detail: String) {
            checks.append(IdentityCheck(name: name, passed: nil, detail: detail))
        }
    }

    private enum Failure: Error {
        case refused(IdentityRefusal, at: IdentityCheck.Name)
        case needsKey(String)
    }

    package init(policy: IdentityPolicy) {
        self.policy = policy
    }

    /// Verifies a token. The checks have the order of ``IdentityCheck/Name``; the first one that fails decides.
    package func verify(
        token: [UInt8],
        expecting expectation: IdentityExpectation,
        keys: KeySet,
        now: WallTime
    ) -> IdentityDecision {
        var findings = Findings()
        do throws(Failure) {
            return .verified(try examine(token, expectation, keys, now, &findings))
        } catch {
            switch error {
            case .refused(let refusal, _): return .refused(refusal)
            case .needsKey(let kid): return .needsKey(kid: kid)
            }
        }
    }

    /// Performs the checks of ``verify(token:expecting:keys:now:)`` and describes each, up to the first one that fails.
    package func explain(
        token: [UInt8],
        expecting expectation: IdentityExpectation,
        keys: KeySet,
        now: WallTime
    ) -> [IdentityCheck] {
        var findings = Findings()
        do throws(Failure) {
            _ = try examine(token, expectation, keys, now, &findings)
            return findings.checks
        } catch {
            let failed: IdentityCheck =
                switch error {
                case .refused(let refusal, let name):
                    IdentityCheck(name: name, passed: false, detail: "\(refusal.reason.rawValue): \(refusal.detail)")
                case .needsKey(let kid):
                    IdentityCheck(
                        name: .key,
                        passed: false,
                        detail: "unknown-key: no usable key \(JSONValue.quoted(kid)) in the key set, which has "
                            + (keys.isEmpty ? "none" : keys.keys.map(\.keyID).joined(separator: ", "))
                    )
                }
            return findings.checks + [failed]
        }
    }
}

// MARK: - The checks

extension IdentityVerifier {
    private func examine(
        _ token: [UInt8],
        _ expectation: IdentityExpectation,
        _ keys: KeySet,
        _ now: WallTime,
        _ findings: inout Findings
    ) throws(Failure) -> VerifiedIdentity {
        let (keyID, claims) = try signedClaims(token, keys, &findings)
        guard !claims.hasEvents else {
            throw .refused(.init(.notAnIdentityToken, "It has a claim “events”: it is a notification."), at: .kind)
        }
        findings.pass(.kind, "no notification")
        guard let issuer = claims.issuer.value, issuer.hasSameBytes(as: policy.issuer) else {
            throw .refused(.init(.wrongIssuer, "The claim “iss” is not \(policy.issuer)."), at: .issuer)
        }
        findings.pass(.issuer, policy.issuer)
        try checkAudience(claims.audience, expectation.client)
        findings.pass(.audience, expectation.client.rawValue)
        let times = try times(of: claims, now)
        findings.pass(.times, "issued \(times.issuedAt), expires \(times.expiresAt)")
        guard now.duration(since: times.issuedAt) <= policy.maximumAge else {
            let detail =
                "It was issued more than \(policy.maximumAge.components.seconds) s ago, although it is valid longer."
            throw .refused(.init(.tokenTooOld, detail), at: .age)
        }
        findings.pass(.age, "issued at most \(policy.maximumAge.components.seconds) s ago")
        try checkBindings(claims, expectation, &findings)
        guard let subject = claims.subject.value, 1...255 ~= subject.utf8.count else {
            throw .refused(.init(.malformedToken, "“sub” is missing, empty or longer than 255 bytes."), at: .subject)
        }
        findings.pass(.subject, JSONValue.quoted(subject))
        return VerifiedIdentity(
            client: expectation.client,
            subject: Subject(subject),
            issuedAt: times.issuedAt,
            expiresAt: times.expiresAt,
            authenticatedAt: times.authenticatedAt,
            email: claims.verifiedEmail,
            realUserStatus: claims.realUserStatus.map(VerifiedIdentity.RealUserStatus.init),
            transferSubject: claims.transferSubject,
            organization: claims.organization,
            accessTokenHash: claims.accessTokenHash.value,
            keyID: keyID
        )
    }

    /// Everything that holds for each token of Apple's.
    private func signedClaims(
        _ token: [UInt8],
        _ keys: KeySet,
        _ findings: inout Findings
    ) throws(Failure) -> (keyID: String, claims: IdentityClaims) {
        let jws: CompactJWS
        do throws(JOSEError) {
            jws = try CompactJWS(parsing: token)
        } catch {
            guard error.code == .unsupportedAlgorithm else {
                throw .refused(.init(.malformedToken, "It is not a compact JWS: \(error.message)."), at: .token)
            }
            findings.pass(.token, "looks like a compact JWS")
            throw .refused(.init(.unsupportedAlgorithm, "Apple signs with RS256 only."), at: .algorithm)
        }
        guard let kid = jws.keyID else {
            throw .refused(.init(.malformedToken, "Its header has no “kid”."), at: .token)
        }
        findings.pass(.token, "a compact JWS")
        findings.pass(.algorithm, CompactJWS.algorithm)
        guard let verifier = prepared.verifier(kid, of: keys) else { throw .needsKey(kid) }
        findings.pass(.key, "kid \(JSONValue.quoted(kid)) is in the key set")
        guard verifier.isValid(jws) else {
            throw .refused(
                .init(.badSignature, "It was changed on its way or signed with another key."),
                at: .signature
            )
        }
        findings.pass(.signature, "valid")
        do throws(JOSEError) {
            let claims = try IdentityClaims(parsing: jws.payload)
            findings.pass(.claims, "strict JSON")
            return (kid, claims)
        } catch {
            throw .refused(.init(.malformedToken, "The payload is not strict JSON: \(error.message)."), at: .claims)
        }
    }

    private func checkAudience(_ claim: Claim<String>, _ client: ClientID) throws(Failure) {
        guard let audience = claim.value else {
            let detail = "The claim “aud” is not one string; expected \(client)."
            throw .refused(.init(.wrongAudience, detail), at: .audience)
        }
        guard audience.hasSameBytes(as: client.rawValue) else {
            let detail = "The token is for \(JSONValue.quoted(audience)); expected \(client)."
            throw .refused(.init(.wrongAudience, detail), at: .audience)
        }
    }

    private typealias Times = (issuedAt: WallTime, expiresAt: WallTime, authenticatedAt: WallTime?)

    private func times(of claims: IdentityClaims, _ now: WallTime) throws(Failure) -> Times {
        let authenticatedAt = claims.authenticatedAt.value.flatMap(ClaimTime.issuedAt)
        guard let issuedAt = claims.issuedAt.value.flatMap(ClaimTime.issuedAt),
            let expiresAt = claims.expiry.value.flatMap(ClaimTime.expiry)
        else {
            let detail = "“iat” or “exp” is missing or not a time in seconds."
            throw .refused(.init(.malformedToken, detail), at: .times)
        }
        guard authenticatedAt != nil || claims.authenticatedAt.isAbsent else {
            throw .refused(.init(.malformedToken, "“auth_time” is not a time in seconds."), at: .times)
        }
        guard now <= expiresAt + policy.leeway else {
            throw .refused(.init(.expired, "It expired at \(expiresAt)."), at: .times)
        }
        let latest = now + policy.leeway
        guard issuedAt <= latest, authenticatedAt.map({ $0 <= latest }) ?? true else {
            let detail = "“iat” or “auth_time” is in the future: check this machine's clock."
            throw .refused(.init(.notYetValid, detail), at: .times)
        }
        return (issuedAt, expiresAt, authenticatedAt)
    }

    /// The token must belong to the attempt: to its nonce, and to the code or access token that came with it.
    private func checkBindings(
        _ claims: IdentityClaims,
        _ expectation: IdentityExpectation,
        _ findings: inout Findings
    ) throws(Failure) {
        if policy.nonce == nil {
            findings.skip(.nonce, "not compared: no nonce was given")
        } else {
            do throws(IdentityRefusal) {
                try policy.check(
                    nonce: claims.nonce,
                    isSupported: claims.nonceIsSupported,
                    against: expectation.nonce
                )
            } catch {
                throw .refused(error, at: .nonce)
            }
            findings.pass(.nonce, claims.nonce.value == nil ? "none, and none is required" : "belongs to the one given")
        }
        if let code = expectation.code {
            guard IdentityPolicy.isHash(claims.codeHash, of: code) else {
                let detail =
                    "“c_hash” is missing or not that of the authorization code: they are of different attempts."
                throw .refused(.init(.codeMismatch, detail), at: .code)
            }
            findings.pass(.code, "c_hash is that of the code")
        } else {
            findings.skip(.code, "not compared: no code was given")
        }
        if let accessToken = expectation.accessToken {
            guard IdentityPolicy.isHash(claims.accessTokenHash, of: accessToken) else {
                let detail = "“at_hash” is missing or not that of the access token."
                throw .refused(.init(.accessTokenMismatch, detail), at: .accessToken)
            }
            findings.pass(.accessToken, "at_hash is that of the access token")
        } else {
            findings.skip(.accessToken, "not compared: no access token was given")
        }
    }
}

/// Confined to the thread that created it: verifying changes the contexts of libcrypto.
@available(*, unavailable)
extension IdentityVerifier: Sendable {}
