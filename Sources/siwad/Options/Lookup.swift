import AccountStore
import AppleTokens
import ArgumentParser
import Postgres
import Settings
import Terminal

extension LookupKey {
    /// The id that an operator wrote: in full, or the beginning of only one id. The beginning may end in the ellipsis of a table.
    ///
    /// - Parameter minimum: of the characters of a beginning. Commands that change something require more than one, because
    ///   a script may pass an id that is no longer stored.
    /// - Returns: nil if there is none.
    /// - Throws: `CommandFailure` if there are several, or `PostgresError`.
    func find(_ text: String, atLeast minimum: Int = 1, in session: borrowing Session) throws -> String? {
        var ids = try matches(text, in: session)
        // An id may end in an ellipsis itself.
        if ids.first == text { return text }
        let text = Self.pasted(text)
        if ids.isEmpty { ids = try matches(text, in: session) }
        if let first = ids.first, first == text || ids.count == 1 && text.count >= minimum { return first }
        guard ids.count < 2 else { throw Self.ambiguity(ids, Self.counted(ids, idNoun)) }
        return nil
    }

    /// As ``find(_:atLeast:in:)``, but fails if there is none.
    func resolve(_ text: String, atLeast minimum: Int = 1, in session: borrowing Session) throws -> String {
        if let id = try find(text, atLeast: minimum, in: session) { return id }
        let beginning = minimum > 1 ? ", or only one that begins with \(minimum) or more characters of it" : ""
        throw CommandFailure(
            .nothingMatched,
            "no \(noun) has this id\(beginning): \(nextCommand("\(listing) list")) shows some"
        )
    }

    /// The subs of the people that an operator named by a sub, a session id, the beginning of one, or an address.
    ///
    /// - Throws: `CommandFailure`, or `PostgresError`.
    static func people(_ text: String, in session: borrowing Session) throws -> [String] {
        let text = pasted(text)
        switch try PersonMatch(text, in: session) {
        case .people(let subjects): return subjects
        case .ambiguous(let subjects, let sessions) where subjects.isEmpty && sessions.isEmpty:
            guard text.contains("@") else {
                let cause = "no person has this sub, and no session this id"
                throw CommandFailure(.nothingMatched, "\(cause): \(nextCommand("accounts list")) shows all people")
            }
            let parts = text.split(separator: "@", omittingEmptySubsequences: false)
            guard parts.count == 2, !parts.contains(""), !text.contains(where: \.isWhitespace) else {
                throw CommandFailure(.usage, "this is not an e-mail address: write name@domain, a sub or a session id")
            }
            let step = "\(nextCommand("accounts list")) shows all people; an erased account has no address"
            throw CommandFailure(.nothingMatched, "no person has this address; capital letters matter: \(step)")
        case .ambiguous(let subjects, let sessions):
            let counts = [(subjects, "sub"), (sessions, "session")].filter { !$0.0.isEmpty }.map { counted($0.0, $0.1) }
            throw ambiguity(subjects + sessions, counts.joined(separator: " and "))
        }
    }

    // MARK: - Private parts

    private var noun: String {
        switch self {
        case .subject, .letterSubject: "person"
        case .session: "session"
        case .notification: "notification"
        }
    }

    private var idNoun: String {
        switch self {
        case .subject, .letterSubject: "sub"
        case .session, .notification: noun
        }
    }

    private var listing: String {
        switch self {
        case .subject: "accounts"
        case .letterSubject: "dead-letters"
        case .session: "sessions"
        case .notification: "notifications"
        }
    }

    private static func pasted(_ text: String) -> String { text.last == "…" ? String(text.dropLast()) : text }

    private static func counted(_ ids: [String], _ noun: String) -> String {
        "\(ids.count == limit ? "at least " : "")\(siwad.counted(ids.count, noun))"
    }

    private static func ambiguity(_ ids: [String], _ counts: String) -> CommandFailure {
        let some = ids.prefix(3).joined(separator: ", ") + (ids.count > 3 ? ", …" : "")
        return CommandFailure(.usage, "\(counts) begin with this: write more of it, or one of these in full: \(some)")
    }
}

/// The one value that a table abbreviates like this: with an ellipsis for its end or, in the column APP, for its beginning.
/// Returns any other text as it is.
func unabbreviated(_ text: String, among values: some Sequence<String>) throws(CommandFailure) -> String {
    guard text.count > 1, text.first == "…" || text.last == "…" else { return text }
    let found = values.filter { text.first == "…" ? $0.hasSuffix(text.dropFirst()) : $0.hasPrefix(text.dropLast()) }
    guard found.count < 2 else {
        throw CommandFailure(.usage, "\(text) can mean \(found.joined(separator: ", ")): write one of these in full")
    }
    return found.first ?? text
}

/// The app of this id, which may be abbreviated as tables do.
private func registeredApp(_ text: String, in session: borrowing Session) throws -> String {
    guard text.contains("…") else { return text }
    return try unabbreviated(text, among: Set(try Clients.list(limit: .max, in: session).map(\.app.rawValue)))
}

// MARK: - Filters

extension AccountFilterOptions {
    func validate(person: String?) throws {
        guard person == nil || sub == nil else {
            throw ValidationError("name the person once: as the argument, or with --sub")
        }
    }

    /// The sub that ``sub`` names.
    func subject(in session: borrowing Session) throws -> String? {
        try sub.map { try LookupKey.subject.resolve($0, in: session) }
    }

    /// The app that ``app`` names.
    func appID(in session: borrowing Session) throws -> String? { try app.map { try registeredApp($0, in: session) } }

    /// - Parameter person: as for ``LookupKey/people(_:in:)``.
    func accounts(person: String?, limit: Int, in session: borrowing Session) throws -> AccountFilter {
        var accounts = AccountFilter(
            subject: try subject(in: session),
            team: team,
            app: try appID(in: session),
            limit: limit
        )
        if let person { accounts.subjects = try LookupKey.people(person, in: session) }
        return accounts
    }

    /// - Throws: `CommandFailure` if the app is not registered, which explains why nothing matched.
    func checkApp(in session: borrowing Session) throws {
        guard let app = try appID(in: session) else { return }
        let apps = Set(try Clients.list(limit: .max, in: session).map(\.app.rawValue))
        guard !apps.contains(app) else { return }
        let registered = apps.sorted().prefix(3).joined(separator: ", ") + (apps.count > 3 ? ", …" : "")
        let step = apps.isEmpty ? "start a daemon with SIWAD_APPS first" : "pass one of \(registered)"
        throw CommandFailure(
            .nothingMatched,
            "nothing matches, and no app \(Redaction.redacted(app)) is registered: \(step)"
        )
    }
}

extension Listing {
    /// The listing, if it has rows or if no wrong option is the reason that it has none.
    func explained(by filter: AccountFilterOptions, in session: borrowing Session) throws -> Self {
        if rows.isEmpty { try filter.checkApp(in: session) }
        return self
    }
}

extension DeadLetterFilterOptions {
    /// The filter with the sub that ``sub`` names. A sub that no letter and no account has keeps its text.
    ///
    /// - Parameter minimum: as for ``LookupKey/find(_:atLeast:in:)``.
    func filter(atLeast minimum: Int = 1, in session: borrowing Session) throws -> DeadLetterFilter {
        var filter = filter
        filter.app = try app.map { try registeredApp($0, in: session) }
        filter.subject = try sub.map { text in
            let key = LookupKey.letterSubject
            if let subject = try key.find(text, atLeast: minimum, in: session) { return subject }
            // A beginning that is too short to change something.
            return try key.find(text, in: session) == nil ? text : key.resolve(text, atLeast: minimum, in: session)
        }
        return filter
    }
}
