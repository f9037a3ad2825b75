package import AccountStore
package import AppleTokens
package import Basics
import JOSE

/// Explains to an operator what happened to a dead letter, and what to do about it.
package struct DeadLetterAdvice: Sendable, Equatable {
    package let cause: String
    package let remedy: String
    /// The command to run after the steps of ``remedy``, without `siwad`; nil if there is nothing to do.
    package let command: String?

    /// - Parameters:
    ///   - apps: the configured apps; nil if they are not known.
    ///   - keys: the keys that were seen so far.
    package init(on record: DeadLetterRecord, apps: AudienceMap?, leeway: Duration, keys: ReplayKeys, now: WallTime) {
        let letter = record.letter
        let facts = Facts(record: record, apps: apps, leeway: leeway, keys: keys, now: now)
        func run(_ verb: String) -> String { "dead-letters \(verb) --note '…'" }
        let (replay, discard) = (run("replay --id \(letter.id)"), run("discard --id \(letter.id)"))
        let upgrade =
            "Look for a siwad that understands it, install it and replay. If it doesn't matter to you, discard it."
        switch letter.status {
        case .replayed:
            cause = "It was kept for: \(letter.detail)"
            remedy = "Nothing is left to do: it was replayed."
            command = nil
        case .discarded:
            cause = "It was kept for: \(letter.detail)"
            remedy = "Nothing, as it was discarded. To process it after all, reopen it first."
            command = run("reopen --id \(letter.id)")
        case .open where record.body.isEmpty && !record.isBodyHidden:
            cause = letter.detail
            remedy = "Its token was erased, so it can't be processed any more: discard it."
            command = discard
        case .open:
            switch letter.reason {
            case .unknownAudience:
                cause = "Apple signed it for the app “\(facts.audience)”, which was not in SIWAD_APPS."
                (remedy, command) = facts.canBeNamed ? (facts.nameApp, replay) : (Facts.nameless, discard)
            case .unknownEventType:
                cause = "Apple signed an event of the type “\(letter.eventType ?? "")”, which siwad didn't know."
                (remedy, command) = (upgrade, replay)
            case .malformedClaims:
                cause = "Apple signed it, but its claims can't be read. \(letter.detail)"
                (remedy, command) = (upgrade, replay)
            case .expired:
                cause = facts.late
                remedy =
                    "If your proxy held it back, or a clock was wrong, accept it late: what is newer stays in force. "
                    + "Otherwise discard it."
                command = run("replay --id \(letter.id) --accept-expired")
            case .notYetValid where record.isBodyHidden:
                (cause, remedy, command) = (letter.detail, Facts.hidden("the time from which it is valid"), nil)
            case .notYetValid:
                (cause, remedy, command) = (facts.early, facts.waitForIt, replay)
            case .storeRejected:
                cause = letter.detail
                remedy = "Remove what refuses it, a constraint or trigger perhaps, and replay it."
                command = replay
            case .keysUnavailable where record.isBodyHidden:
                (cause, remedy, command) = (facts.keyless, Facts.hidden("the name of its key"), nil)
            case .keysUnavailable:
                (cause, remedy, command) = (facts.keyless, facts.askForKey, replay)
            case .none:
                (cause, remedy, command) = (letter.detail, "Upgrade siwad, which doesn't know this reason.", nil)
            }
        }
    }
}

/// The facts about a letter, as sentences.
private struct Facts {
    let record: DeadLetterRecord
    let apps: AudienceMap?
    let leeway: Duration
    let keys: ReplayKeys
    let now: WallTime

    private var letter: KeptDeadLetter { record.letter }

    /// The remedy if only the token says what to do, and the database role may not read it.
    static func hidden(_ fact: String) -> String {
        "This database role may not read its token, which has \(fact): look at it as a member of siwad_daemon."
    }

    /// The token. A body without a readable token names no times and no key.
    private var jws: CompactJWS? {
        guard let token = try? NotificationBody.token(in: record.body) else { return nil }
        return try? CompactJWS(parsing: token)
    }

    // MARK: - unknown-audience

    var audience: String { letter.audience ?? "" }

    var canBeNamed: Bool {
        // The cause of a refusal does not matter: no other spelling would fit the token.
        let entry = try? AudienceMap(parsing: "AAAAAAAAAA/\(audience)")
        return entry?.group(audience: audience) != nil
    }

    static let nameless =
        "No app has such a name, and no entry of SIWAD_APPS can hold it, so a replay can't help: discard it."

    var nameApp: String {
        if apps?.group(audience: audience) != nil { return "The app is in SIWAD_APPS by now: replay it." }
        return
            "Add TEAMID/\(audience) to SIWAD_APPS, with the ten characters of its team for TEAMID, and reload siwad serve by "
            + "SIGHUP, or restart it if the setting is a variable. Then replay it. If the app isn't yours, discard it."
    }

    // MARK: - expired, not-yet-valid

    private var claims: JSONValue? { jws.flatMap { try? JSONValue(parsing: $0.payload) } }

    /// How long after the time in a claim it was received.
    private func lateness(by claim: String) -> String? {
        claims?[claim]?.integer.map { letter.receivedAt.duration(since: WallTime(seconds: $0)).inWords }
    }

    var late: String {
        if let lateness = lateness(by: "exp") {
            return "It reached siwad \(lateness) after its “exp”, with a leeway of \(leeway.inWords)."
        }
        guard let lateness = lateness(by: "iat") else { return letter.detail }
        return
            "It has no “exp”, which makes it valid for a day, and reached siwad \(lateness) after its “iat”, with a "
            + "leeway of \(leeway.inWords)."
    }

    private var claimedTime: WallTime? {
        let claims = claims
        let issued = claims?["iat"]?.integer.map { WallTime(seconds: $0) }
        func one(_ events: JSONValue?) -> JSONValue? { events?.array?.first ?? events }
        var event = one(claims?["events"])
        // An event that can't be read has no time either.
        if let text = event?.string { event = one(try? JSONValue(parsing: Array(text.utf8))) }
        let happened = event?["event_time"]?.integer.map { WallTime(secondsOrMilliseconds: $0) }
        return [issued, happened].compactMap { $0 }.max()
    }

    var early: String {
        guard let claimedTime else { return letter.detail }
        let ahead = claimedTime.duration(since: letter.receivedAt)
        return "\(letter.detail) It is \(ahead.inWords) ahead of the time at which it was received."
    }

    var waitForIt: String {
        guard let claimedTime else { return "Correct the clock of this machine, then replay it." }
        if claimedTime <= now { return "That time has come: replay it." }
        return "Correct the clock of this machine if it is slow, or wait until \(claimedTime). Then replay it."
    }

    // MARK: - keys-unavailable

    var keyless: String {
        let name = jws?.keyID.map { " “\($0)”" } ?? ""
        if letter.attempts > 1 {
            return "Whether Apple signed it is unknown without the key\(name). \(letter.detail)"
        }
        return
            "Its key\(name) was not known and Apple's key set could not be fetched, so it is unknown whether Apple signed it."
    }

    var askForKey: String {
        let isKnown = jws?.keyID.map { keys.covers($0, receivedAt: letter.receivedAt, leeway: leeway) } ?? false
        if isKnown { return "The key is known by now: replay it, which verifies it first." }
        return
            "The key is still not known. A replay asks for Apple's key set; if that can be fetched and lacks the key, "
            + "Apple didn't sign it: discard it."
    }
}

extension Duration {
    /// For a person: `3d 4h`, `2h 5m`, `1m 30s`, `12s`.
    fileprivate var inWords: String {
        let seconds = max(0, components.seconds)
        let units = [
            ("d", seconds / 86_400), ("h", seconds / 3_600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60),
        ]
        let words = units.drop { $0.1 == 0 }.prefix(2).filter { $0.1 > 0 }.map { "\($0.1)\($0.0)" }
        return words.isEmpty ? "0s" : words.joined(separator: " ")
    }
}
