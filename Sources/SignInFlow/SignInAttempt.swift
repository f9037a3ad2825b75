import AccountStore
import AppleTokens
import Basics
import Ingest
import JOSE
import SignIn
import Telemetry
import WebClient

/// One request to sign in, on its fixed way: the identity token is verified, the sign-in reserved, its code traded, and the
/// result settled. Nothing is traded before the database has accepted the sign-in.
struct SignInAttempt: Sendable {
    /// What all attempts share until the settings change.
    struct Means: Sendable {
        let policy: SignInPolicy
        /// For tokens that applications present.
        let presented: SharedIdentityVerifier
        /// For tokens out of Apple's answers.
        let answered: SharedIdentityVerifier
        let exchanger: CodeExchanger
        let database: SignInDatabase
        let metrics: SignInMetrics
        let log: Log
    }

    /// How long a request waits for another one with the same token.
    private static let longestWait = Duration.seconds(3)
    /// How long after its reservation another attempt to settle a sign-in may begin. One of 3 seconds then ends within the 15
    /// seconds of the reservation, unless it waits for a connection.
    private static let settlementTime = Duration.seconds(12)
    /// An old login at Apple's web site must not make the sign-in older than this.
    private static let oldestLogin = Duration.seconds(600)

    let request: SignInRequest
    let caller: String
    let group: AudienceMap.Group
    let means: Means

    private var policy: SignInPolicy { means.policy }

    func run() async throws(Problem) -> SignInAnswer {
        let presented = try await presentedIdentity()
        switch try await reserve(presented) {
        case .settled(let settled): return answer(settled, presented, isRepeated: false)
        case .repeated(let settled):
            try checkAge(of: settled, presented)
            return answer(settled, presented, isRepeated: true)
        case .refused(let conflict): throw Problem(conflict)
        case .reserved(let signInID):
            let end = ContinuousClock.now + Self.settlementTime
            do throws(Problem) {
                if presented == nil {
                    // Not before the reservation, which recognises a repeated request: its nonce was in time then.
                    try policy.check(request.nonce, of: request.client, usedAt: .now())
                }
                return try await finish(signInID, presented, until: end)
            } catch {
                switch error.reason {
                // Its outcome may be stored after all, so the reservation ends by itself; a used code counts as lost then.
                case .databaseUnavailable: break
                // Apple answered the code, but its answer can't be verified at present.
                case .keysUnavailable: await means.database.abandon(signInID)
                default: await means.database.release(signInID)
                }
                throw error
            }
        }
    }

    /// The verified token; nil in the flow with a code only.
    private func presentedIdentity() async throws(Problem) -> VerifiedIdentity? {
        if case .at(let end) = request.session?.expiry, end <= .now() {
            throw Problem(.malformedRequest, "session.expires_at is in the past.")
        }
        guard let token = request.identityToken else {
            try policy.check(nonceOfCode: request.nonce, of: request.client)
            return nil
        }
        let identity = try await means.presented.verify(
            token,
            expecting: IdentityExpectation(
                client: request.client,
                nonce: request.nonce,
                code: request.authorizationCode
            )
        )
        // The nonce was used when Apple issued the token. From then on, the age of the token bounds the time in which the same
        // request can be sent again. With a slow clock here, Apple's time would make the nonce too old.
        let usedAt = min(identity.issuedAt, WallTime.now())
        try policy.check(request.nonce, of: request.client, usedAt: usedAt)
        return identity
    }

    /// A repeated request is answered as long as its token is accepted. A code alone has no time of its own.
    private func checkAge(of settled: SettledSignIn, _ presented: VerifiedIdentity?) throws(Problem) {
        let end = settled.signedInAt + Self.oldestLogin + policy.identity.maximumAge
        guard presented != nil || .now() < end else {
            throw Problem(.tokenTooOld, "The code was traded too long ago to answer the same request again.")
        }
    }

    private func reserve(_ presented: VerifiedIdentity?) async throws(Problem) -> SignInStart {
        let code = request.authorizationCode.map { SHA256.digest(Array($0.utf8).span) }
        let token = request.identityToken.map { SHA256.digest($0.span) }
        guard let digest = token ?? code else { preconditionFailure("a request has a token or a code") }
        let new = NewSignIn(
            presentedDigest: digest,
            nonceDigest: request.nonce.map { SHA256.digest(Array($0.utf8).span) },
            codeDigest: code,
            attempt: request.idempotencyKey.map { SHA256.digest(Array($0.utf8).span) },
            client: request.client,
            caller: caller,
            kind: presented == nil ? .code : request.redirectURI == nil ? .native : .web,
            subject: presented?.subject,
            // So that a database whose clock is too far behind refuses a code before it is used.
            issuedAt: presented?.issuedAt ?? WallTime.now(),
            sessionID: request.session?.id,
            device: request.device.map { SignInDevice(platform: $0.platform, model: $0.model, label: $0.label) }
        )
        let settlement =
            request.authorizationCode == nil
            ? presented.map { self.settlement(0, $0, signedInAt: $0.issuedAt, refresh: .none) } : nil
        let end = ContinuousClock.now + Self.longestWait
        var pause = Duration.milliseconds(10)
        while true {
            let start = try await means.database.reserve(new, settling: settlement)
            guard start == .refused(.inProgress), .now < end else { return start }
            // The task of a sign-in is never cancelled.
            try? await Task.sleep(for: pause)
            pause = min(pause * 2, .milliseconds(200))
        }
    }

    /// - Parameter end: until when the settlement is repeated.
    private func finish(
        _ signInID: Int64,
        _ presented: VerifiedIdentity?,
        until end: ContinuousClock.Instant
    ) async throws(Problem) -> SignInAnswer {
        let traded = try await trade(presented)
        guard let identity = presented ?? traded.identity else {
            preconditionFailure("a code alone is only accepted with Apple's identity token")
        }
        let earliest = identity.issuedAt - Self.oldestLogin
        // Not siwad's time alone: with a slow clock, it would set the sign-in before the consent.
        let latest = max(identity.issuedAt, WallTime.now())
        let signedInAt = presented?.issuedAt ?? min(max(identity.authenticatedAt ?? earliest, earliest), latest)
        let token = traded.token.flatMap { token in
            policy.trade.map { UnsealedToken(text: token, keys: $0.sealingKeys) }
        }
        let settlement = settlement(signInID, identity, signedInAt: signedInAt, refresh: traded.refresh)
        let settled = try await means.database.settle(settlement, token, until: end)
        return answer(settled, identity, isRepeated: false)
    }

    private func settlement(
        _ signInID: Int64,
        _ identity: VerifiedIdentity,
        signedInAt: WallTime,
        refresh: RefreshState
    ) -> Settlement {
        Settlement(
            signInID: signInID,
            subject: identity.subject,
            email: identity.email,
            signedInAt: signedInAt,
            name: request.name.map { Settlement.Name(given: $0.given, family: $0.family) },
            keepsNames: policy.keepsNames,
            realUserStatus: identity.realUserStatus?.word,
            refresh: refresh,
            session: request.session.map { session in
                let end: WallTime? =
                    switch session.expiry {
                    case nil: nil
                    case .after(let time): WallTime.now() + time
                    case .at(let time): time
                    }
                // With a slow clock, or after a slow exchange, a short session would end before it began.
                let start = end.map { min(signedInAt, $0 - .seconds(1)) } ?? signedInAt
                return Settlement.Session(id: session.id, createdAt: start, expiresAt: end)
            }
        )
    }
}

// MARK: - The exchange

extension SignInAttempt {
    private struct Traded {
        var refresh: RefreshState
        var token: String?
        /// Out of Apple's answer.
        var identity: VerifiedIdentity?
    }

    private func trade(_ presented: VerifiedIdentity?) async throws(Problem) -> Traded {
        guard let code = request.authorizationCode, let trade = policy.trade else { return Traded(refresh: .none) }
        let mode = presented == nil ? .required : policy.exchange
        let exchange = await means.exchanger.exchange(
            TradedCode(code: code, redirectURI: request.redirectURI, client: request.client, group: group),
            with: trade.secrets,
            budget: mode.budget
        )
        switch exchange.answer {
        // An answer without an identity token, or with one that can't be verified now, does not contradict the presented token,
        // which decides the sign-in; the code is used.
        case .issued(let tokens) where mode == .preferred && tokens.identityToken == nil:
            means.unverifiable(.appleUnexpected)
            return Traded(refresh: .lost)
        case .issued(let tokens):
            let identity: VerifiedIdentity
            do throws(Problem) {
                identity = try await means.identity(
                    of: tokens,
                    client: request.client,
                    presentedSubject: presented?.subject,
                    nonce: request.nonce
                )
            } catch {
                guard mode == .preferred, error.reason == .keysUnavailable else { throw error }
                means.unverifiable(error.reason)
                return Traded(refresh: .lost)
            }
            return Traded(
                refresh: tokens.refreshToken == nil ? .none : .stored,
                token: tokens.refreshToken,
                identity: identity
            )
        case .grantRefused(let refusal), .requestRefused(let refusal):
            guard mode == .preferred else {
                let cause = refusal.detail.words(redirectURI: request.redirectURI)
                throw Problem(.codeRejected, "Apple answers \(refusal.code.rawValue): \(cause).")
            }
            return Traded(refresh: exchange.isRepeated ? .lost : .refused(refusal.code.rawValue))
        case .clientRefused(let refusal):
            guard mode == .preferred else {
                let detail = "Apple answers \(refusal.code.rawValue); siwad's log names what to check."
                throw Problem(.appleRefusedClient, detail)
            }
            return Traded(refresh: .refused(refusal.code.rawValue))
        case .unavailable(let unavailability):
            guard mode == .preferred, let presented else {
                let detail = "Apple's token endpoint gives no answer at present."
                throw Problem(.appleUnavailable, detail, retryAfter: unavailability.retryAfter)
            }
            return Traded(refresh: pending(code, trade.sealingKeys, presented, unavailability.retryAfter))
        }
    }

    /// Seals the code for the exchange in the background.
    private func pending(
        _ code: String,
        _ keys: SealingKeys,
        _ presented: VerifiedIdentity,
        _ retryAfter: Int?
    ) -> RefreshState {
        let due = ExchangeSchedule.next(
            after: 0,
            issuedAt: presented.issuedAt,
            retryAfter: retryAfter,
            now: .now()
        )
        guard let due else { return .lost }
        do throws(JOSEError) {
            let sealed = try SealedCode(code: code, redirectURI: request.redirectURI)
                .seal(for: request.client, with: keys)
            return .pending(sealedCode: sealed, due: due)
        } catch {
            means.log.error("a code can't be sealed, so its refresh token is lost", ["error": "\(error)"])
            return .lost
        }
    }
}

extension SignInAttempt.Means {
    /// Verifies the identity token of Apple's answer, and that it belongs to the answer and to the person who signs in.
    ///
    /// - Parameters:
    ///   - presentedSubject: of the presented token, with which the nonce was compared; nil in the flow with a code only.
    ///   - nonce: of the request.
    func identity(
        of tokens: IssuedTokens,
        client: ClientID,
        presentedSubject: Subject?,
        nonce: String?
    ) async throws(Problem) -> VerifiedIdentity {
        guard let token = tokens.identityToken else { throw unexpected("it has no identity token") }
        let identity: VerifiedIdentity
        do throws(Problem) {
            let verifier = presentedSubject == nil ? presented : answered
            let expectation = IdentityExpectation(client: client, nonce: nonce)
            identity = try await verifier.verify(Array(token.utf8), expecting: expectation)
        } catch {
            if [.keysUnavailable, .nonceMismatch, .nonceMissing].contains(error.reason) { throw error }
            throw unexpected("its identity token is refused: \(error.reason.rawValue)")
        }
        let isFitting = tokens.matches(
            subject: identity.subject.rawValue,
            accessTokenHash: identity.accessTokenHash,
            presentedSubject: presentedSubject?.rawValue
        )
        guard isFitting else { throw unexpected("its identity token is of another person or another answer") }
        return identity
    }

    /// Reports a refresh token that is lost because Apple's answer can't be verified, though the sign-in goes on.
    fileprivate func unverifiable(_ reason: Problem.Reason) {
        // Alerts look at these outcomes.
        metrics.signIns.increment(reason.rawValue)
        guard database.faults.isDue(.appleTokens(reason.rawValue)) else { return }
        let message = "Apple's answer to a code can't be verified, so its refresh token is lost"
        log.error(message, ["error": reason == .appleUnexpected ? "it has no identity token" : reason.rawValue])
    }

    private func unexpected(_ cause: String) -> Problem {
        log.error("Apple's answer to a code does not fit the sign-in, nothing of it is stored", ["cause": cause])
        return Problem(.appleUnexpected, "Apple answered the code, but \(cause).")
    }
}

// MARK: - The answer

extension SignInAttempt {
    /// - Parameter identity: nil if a code alone is repeated.
    private func answer(
        _ settled: SettledSignIn,
        _ identity: VerifiedIdentity?,
        isRepeated: Bool
    ) -> SignInAnswer {
        SignInAnswer(
            signInID: settled.signInID,
            isRepeated: isRepeated,
            isNewAccount: settled.isNewAccount,
            signedInAt: settled.signedInAt,
            account: SignInAnswer.Account(
                id: settled.accountID,
                team: settled.team,
                subject: settled.subject,
                app: settled.app,
                client: settled.client,
                state: settled.state
            ),
            email: email(settled, identity),
            name: name(settled),
            realUserStatus: settled.realUserStatus,
            organization: identity?.organization,
            transferSubject: identity?.transferSubject,
            isEmailLinkable: identity?.isEmailLinkable ?? false,
            refreshToken: SignInAnswer.RefreshToken(settled.refresh),
            refreshTokenError: settled.refreshError,
            session: settled.session.map {
                SignInAnswer.Session(id: $0.id, isLive: $0.isLive, createdAt: $0.createdAt, expiresAt: $0.expiresAt)
            }
        )
    }

    /// The address in the token, or that of the account where no token is at hand.
    private func email(_ settled: SettledSignIn, _ identity: VerifiedIdentity?) -> SignInAnswer.Email? {
        let isDeliverable = settled.email?.isDeliverable ?? true
        guard let identity else {
            return settled.email.map {
                SignInAnswer.Email(address: $0.address, isPrivate: $0.isPrivate ?? false, isDeliverable: isDeliverable)
            }
        }
        return identity.email.map {
            SignInAnswer.Email(address: $0.address, isPrivate: $0.isPrivate, isDeliverable: isDeliverable)
        }
    }

    /// The stored name, or the one of the request where names aren't kept: one that was stored before is not given out then.
    private func name(_ settled: SettledSignIn) -> SignInAnswer.Name? {
        if policy.keepsNames, let name = settled.name {
            return SignInAnswer.Name(given: name.given, family: name.family, capturedAt: name.capturedAt)
        }
        return request.name.map {
            SignInAnswer.Name(given: $0.given, family: $0.family, capturedAt: settled.signedInAt)
        }
    }
}

extension VerifiedIdentity.RealUserStatus {
    /// nil for a number that Apple has not documented.
    fileprivate var word: String? {
        switch self {
        case .unsupported: "unsupported"
        case .unknown: "unknown"
        case .likelyReal: "likely-real"
        case .unrecognized: nil
        }
    }
}

extension SignInAnswer.RefreshToken {
    fileprivate init(_ outcome: RefreshOutcome) {
        self =
            switch outcome {
            case .stored: .stored
            case .pending: .pending
            case .kept: .kept
            case .none: .none
            case .lost: .lost
            case .refused: .refused
            }
    }
}
