import Basics

/// The rules by which a notification is accepted: issuer, audience and times.
package struct NotificationPolicy: Sendable, Equatable {
    /// Apple's issuer (`iss`), compared byte by byte.
    package let issuer: String
    package let audiences: AudienceMap
    /// How far Apple's clock and ours may differ in both directions; never negative.
    package let leeway: Duration

    /// Apple's `iss`. A constant, because Apple's discovery document once named another issuer for a day.
    package static let appleIssuer = "https://appleid.apple.com"

    /// A negative leeway counts as zero.
    package init(issuer: String = appleIssuer, audiences: AudienceMap, leeway: Duration = .seconds(300)) {
        self.issuer = issuer
        self.audiences = audiences
        self.leeway = max(leeway, .zero)
    }
}

extension NotificationPolicy {
    /// Checks the claims of a token whose signature is valid. The contract fixes the order: issuer, presence of events,
    /// audience, times, all other claims, type.
    func check(
        _ claims: NotificationClaims,
        keyID: String,
        token: [UInt8],
        receivedAt: WallTime?,
        now: WallTime
    ) throws(VerificationFailure) -> VerifiedNotification {
        guard let issuer = claims.issuer.value, issuer.hasSameBytes(as: self.issuer) else {
            throw .refused(.wrongIssuer, at: .issuer)
        }
        if case .absent = claims.events { throw .refused(.notANotification, at: .events) }
        let (audience, group) = try group(of: claims)
        try checkTimes(of: claims, receivedAt: receivedAt, now: now)

        let id = try Self.name(claims.id, claim: "jti")
        let issueTime = try Self.present(claims.issuedAt, claim: "iat", type: "a whole number")
        guard let issuedAt = ClaimTime.issuedAt(issueTime) else {
            throw .malformed("“iat” is not between 2008 and 2200.")
        }
        let expiresAt = try Self.expiresAt(claims, issuedAt: issuedAt)
        let event = try Self.event(claims.events)
        return VerifiedNotification(
            id: NotificationID(id),
            issuedAt: issuedAt,
            expiresAt: expiresAt,
            team: group.team,
            app: group.app,
            audience: audience,
            event: event,
            keyID: keyID,
            token: token
        )
    }

    private func group(of claims: NotificationClaims) throws(VerificationFailure) -> (String, AudienceMap.Group) {
        switch claims.audience {
        case .absent: throw .malformed("The claim “aud” is missing.", at: .audience)
        case .malformed: throw .malformed("The claim “aud” is not a string.", at: .audience)
        case .value(let audience):
            guard let group = audiences.group(audience: audience) else {
                throw .deadLetter(.unknownAudience, "The claim “aud” is not one of the configured apps.", at: .audience)
            }
            return (audience, group)
        }
    }

    /// Checks the times that can be read. The check of the claims refuses the others.
    private func checkTimes(
        of claims: NotificationClaims,
        receivedAt: WallTime?,
        now: WallTime
    ) throws(VerificationFailure) {
        let issuedAt = claims.issuedAt.value.flatMap(ClaimTime.issuedAt)
        let expiresAt: WallTime? =
            switch claims.expiry {
            case .absent: issuedAt.map { $0 + ClaimTime.validity }
            case .malformed: nil
            case .value(let seconds): ClaimTime.expiry(seconds)
            }
        if let expiresAt, let receivedAt, receivedAt > expiresAt + leeway {
            let lateness =
                claims.expiry.value == nil
                ? "It arrived more than a day after the time in its claim “iat”, and has no “exp”."
                : "It arrived after the time in its claim “exp”."
            throw .deadLetter(.expired, lateness, at: .times)
        }
        // A later event would supersede all others until then.
        let latest = now + leeway
        if let issuedAt, issuedAt > latest {
            throw .deadLetter(.notYetValid, "Its claim “iat” is in the future.", at: .times)
        }
        if let time = claims.event?.time.value.flatMap(ClaimTime.event), time > latest {
            throw .deadLetter(.notYetValid, "Its “event_time” is in the future.", at: .times)
        }
    }

    private static func expiresAt(_ claims: NotificationClaims, issuedAt: WallTime) throws(VerificationFailure)
        -> WallTime
    {
        switch claims.expiry {
        case .absent: return issuedAt + ClaimTime.validity
        case .malformed: throw .malformed("“exp” is not a whole number.")
        case .value(let seconds):
            guard let time = ClaimTime.expiry(seconds) else { throw .malformed("“exp” is not between 1970 and 2200.") }
            return time
        }
    }
}

// MARK: - The event

extension NotificationPolicy {
    private static func event(_ claim: EventsClaim) throws(VerificationFailure) -> AccountEvent {
        switch claim {
        case .absent: throw .refused(.notANotification, at: .events)
        case .wrongType: throw .malformed("“events” is neither a string nor an object.")
        case .unreadableText: throw .malformed("“events” is a string without a JSON object.")
        case .notOne: throw .malformed("“events” does not have exactly one event.")
        case .one(let event): return try self.event(event)
        }
    }

    private static func event(_ claims: EventClaims) throws(VerificationFailure) -> AccountEvent {
        let rawType = try present(claims.type, claim: "type", type: "a string")
        let subject = try name(claims.subject, claim: "sub")
        let number = try present(claims.time, claim: "event_time", type: "a whole number")
        guard let time = ClaimTime.event(number) else { throw .malformed("“event_time” is not between 2008 and 2200.") }
        guard let kind = AccountEvent.Kind(appleType: rawType) else {
            throw .deadLetter(.unknownEventType, "The “type” of the event is unknown.", at: .event)
        }
        let email = kind.isAboutEmail ? try address(claims.email) : nil
        return AccountEvent(
            kind: kind,
            rawType: rawType,
            subject: Subject(subject),
            time: time,
            email: email,
            emailIsPrivate: email == nil ? nil : claims.emailIsPrivate
        )
    }

    /// At most 320 bytes: RFC 5321 §4.5.3.1 allows 64 + 1 + 255.
    private static func address(_ claim: Claim<String>) throws(VerificationFailure) -> String? {
        switch claim {
        case .absent: return nil
        case .malformed: throw .malformed("“email” is not a string.")
        case .value(let email):
            guard 1...320 ~= email.utf8.count, !email.holdsControlCharacter else {
                throw .malformed("“email” is empty, longer than 320 bytes or contains a control character.")
            }
            return email
        }
    }

    /// A name of 1…256 bytes.
    private static func name(_ claim: Claim<String>, claim name: StaticString) throws(VerificationFailure) -> String {
        let text = try present(claim, claim: name, type: "a string")
        guard 1...256 ~= text.utf8.count else { throw .malformed("“\(name)” is empty or longer than 256 bytes.") }
        return text
    }

    private static func present<Value>(
        _ claim: Claim<Value>,
        claim name: StaticString,
        type: StaticString
    ) throws(VerificationFailure) -> Value {
        switch claim {
        case .absent: throw .malformed("“\(name)” is missing.")
        case .malformed: throw .malformed("“\(name)” is not \(type).")
        case .value(let value): return value
        }
    }
}

extension VerificationFailure {
    fileprivate static func malformed(_ detail: String, at check: Check.Name = .event) -> VerificationFailure {
        .deadLetter(.malformedClaims, detail, at: check)
    }
}

/// Converts numbers in claims to times. Sign in with Apple began in 2019, so a time before 2008 or after 2200 has a wrong unit
/// and must not be stored.
enum ClaimTime {
    /// `exp` − `iat` in every notification that Apple sent.
    static let validity = Duration.seconds(86_400)

    private static let year2008: Int64 = 1_199_145_600
    private static let year2200: Int64 = 7_258_118_400

    static func issuedAt(_ seconds: Int64) -> WallTime? {
        year2008..<year2200 ~= seconds ? WallTime(seconds: seconds) : nil
    }

    static func expiry(_ seconds: Int64) -> WallTime? {
        0..<year2200 ~= seconds ? WallTime(seconds: seconds) : nil
    }

    static func event(_ number: Int64) -> WallTime? {
        let time = WallTime(secondsOrMilliseconds: number)
        return WallTime(seconds: year2008)..<WallTime(seconds: year2200) ~= time ? time : nil
    }
}
