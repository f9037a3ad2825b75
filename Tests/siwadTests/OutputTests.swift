import AppleTokens
import Basics
import JOSE
import Terminal
import Testing

@testable import AccountStore
@testable import Postgres
@testable import siwad

private func time(_ text: String) -> WallTime {
    WallTime(iso8601: text) ?? WallTime(microseconds: 0)
}

private let person = Subject("000768.6166f031167141e695698239959f591a.1521")
private let team = TeamID("A1B2C3D4E5")
private let app = AppID("com.example.quite.long.application")

private func state(_ state: String, team: TeamID = team) -> AccountState {
    AccountState(
        team: team,
        subject: person,
        app: app,
        state: state,
        authorizedAt: time("2026-01-02T03:04:05Z"),
        revokedAt: time("2026-02-03T04:05:06Z"),
        deletedAt: nil,
        email: "k7x2m9@privaterelay.appleid.com",
        emailIsPrivate: true,
        emailIsDeliverable: false
    )
}

private func change(
    _ facet: String,
    from fromState: String,
    to toState: String,
    sessionsEnded: Int = 2
) -> AccountChange {
    AccountChange(
        team: team,
        subject: person,
        app: app,
        facet: facet,
        fromState: fromState,
        toState: toState,
        eventTime: time("2026-02-03T04:05:06Z"),
        recordedAt: time("2026-02-03T04:05:16Z"),
        notificationID: "H20GBS4ytjusfHJsbmBE6A",
        sessionsEnded: sessionsEnded
    )
}

/// Every kind of change.
private let changes = [
    change("consent", from: "unknown", to: "authorized"), change("consent", from: "authorized", to: "revoked"),
    change("consent", from: "authorized", to: "authorized", sessionsEnded: 10_000),
    change("consent", from: "revoked", to: "revoked"), change("account", from: "active", to: "deleted"),
    change("email", from: "deliverable", to: "undeliverable"),
    change("email", from: "undeliverable", to: "deliverable"),
]

private func letter(_ reason: DeadLetterReason, _ status: DeadLetterStatus) -> KeptDeadLetter {
    KeptDeadLetter(
        id: 9_999_999,
        receivedAt: time("2026-02-03T04:05:06Z"),
        lastReceivedAt: time("2026-02-03T04:05:06Z"),
        deliveries: 1,
        rawReason: reason.rawValue,
        detail: "The type is unknown.",
        status: status,
        attempts: 10_000,
        notificationID: "H20GBS4ytjusfHJsbmBE6A",
        audience: app.rawValue,
        subject: person.rawValue,
        eventType: "consent-revoked",
        verifiedKeyID: nil,
        verifiedAt: nil,
        lastFailedAt: nil,
        lastFailedBy: nil,
        lastFailedByRole: nil,
        resolvedAt: nil,
        resolvedBy: nil,
        resolvedByRole: nil,
        note: nil,
        outcome: nil
    )
}

private let count = DeadLetterCount(
    group: app.rawValue,
    open: 999_999_999,
    replayed: 99_999_999,
    discarded: 999_999_999,
    oldestOpenAt: time("2026-01-02T03:04:05Z"),
    newestAt: time("2026-02-03T04:05:06Z")
)

private let session = AccountSession(
    id: "a3f1c5d",
    team: team,
    subject: person,
    app: app,
    createdAt: time("2026-01-02T03:04:05Z"),
    signedInAt: time("2026-01-02T03:04:05Z"),
    expiresAt: nil,
    endedAt: time("2026-02-03T04:05:06Z"),
    endReason: "consent-revoked",
    isLive: false
)

private let registers = AccountRegisters(
    team: team,
    subject: person,
    firstHeardAt: time("2026-01-02T03:04:05Z"),
    deletedAt: nil,
    forwardingDisabledAt: time("2026-01-03T00:00:00Z"),
    forwardingEnabledAt: nil,
    email: "k7x2m9@privaterelay.appleid.com",
    emailIsPrivate: true,
    emailObservedAt: time("2026-01-03T00:00:00Z"),
    erasedAt: nil
)

private let notification = LoggedNotification(
    id: "H20GBS4ytjusfHJsbmBE6A",
    issuedAt: time("2026-02-03T04:05:10Z"),
    receivedAt: time("2026-02-03T04:05:11Z"),
    recordedAt: time("2026-02-03T04:05:11Z"),
    team: team,
    app: app,
    subject: person,
    eventType: "consent-revoked",
    eventTime: time("2026-02-03T04:05:06Z"),
    outcome: "superseded",
    source: "endpoint",
    sessionsEnded: 2,
    verifiedKeyID: "fh6Bs8C",
    token: nil
)

@Suite("Output of commands")
struct OutputTests {
    private let narrow = OutputStyle(width: 80, usesColor: false)

    @Test("Every table fits 80 columns.")
    func fits() {
        let teams = [state("authorized"), state("revoked", team: TeamID("F6G7H8I9J0"))]
        let letters = DeadLetterReason.allCases.flatMap { reason in
            DeadLetterStatus.allCases.map { letter(reason, $0) }
        }
        let tables: [Table] =
            [
                AccountListings.states(teams).table, AccountListings.history(changes).table,
                AccountListings.sessions([session]).table, NotificationListing.list([notification]).table,
                DeadLetterListing.list(letters).table, DeadLetterListing.list([letters[0]]).table,
            ] + DeadLetterGrouping.allCases.map { DeadLetterListing.counts([count], by: $0).table }
        let lines = tables.flatMap { $0.lines(style: narrow) }
        for line in lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
    }

    @Test("The team has a column only if the rows belong to several teams.")
    func teams() {
        let one = AccountListings.states([state("revoked"), state("revoked")]).table.lines(style: .plain)
        let two = AccountListings.states([state("revoked"), state("revoked", team: TeamID("F6G7H8I9J0"))]).table
        #expect(!one[0].contains("TEAM"))
        #expect(two.lines(style: .plain)[0].contains("TEAM"))
    }

    @Test("The time of a state is the time of the event that set it.")
    func since() {
        #expect(state("authorized").since == time("2026-01-02T03:04:05Z"))
        #expect(state("revoked").since == time("2026-02-03T04:05:06Z"))
        #expect(state("deleted").since == nil)
        #expect(state("unknown").since == nil)
    }

    @Test("The history names each change in a word, and revocations that only ended older sessions.")
    func words() {
        let lines = AccountListings.history(changes).table.lines(style: .plain).dropFirst()
        let words = [
            "authorized", "revoked", "older sessions", "older sessions", "deleted", "mail off", "mail on",
        ]
        #expect(lines.count == words.count)
        for (line, word) in zip(lines, words) { #expect(line.contains("  \(word)  "), "\(line)") }
        #expect(
            AccountListings.changeColumns.object(of: changes[2]).line.contains(
                #""from_state":"authorized","to_state":"authorized""#
            )
        )
    }

    @Test(
        "A time is shown to the second or the minute, in years of any length.",
        arguments: [
            ("2026-01-02T03:04:05.678Z", 1_767_323_045_678), ("58961-10-01T23:58:37.000Z", 1_798_485_983_917_000),
            ("-0001-03-04T05:06:07.000Z", -62_193_380_033_000),
        ]
    )
    func times(iso8601: String, milliseconds: Int) {
        let time = WallTime(microseconds: Int64(milliseconds) * 1_000)
        #expect(time.iso8601 == iso8601)
        let text = String(iso8601.dropLast(".000Z".count)).replacing("T", with: " ")
        #expect(time.secondText == text)
        #expect(time.minuteText == String(text.dropLast(":00".count)))
    }

    @Test("The ends of the range of times are shown as PostgreSQL writes them.")
    func infinity() {
        #expect(WallTime(microseconds: .max).secondText == "infinity")
        #expect(WallTime(microseconds: .min).minuteText == "-infinity")
    }

    @Test("Values that are cut to fit remain different.")
    func cuts() {
        let reasons = DeadLetterReason.allCases.map(\.rawValue)
        let counts = reasons.map {
            DeadLetterCount(
                group: $0,
                open: count.open,
                replayed: count.replayed,
                discarded: count.discarded,
                oldestOpenAt: count.oldestOpenAt,
                newestAt: count.newestAt
            )
        }
        let groups = DeadLetterListing.counts(counts, by: .reason).table.lines(style: narrow).map { $0.prefix(12) }
        #expect(Set(groups).count == reasons.count + 1)
        let statuses = DeadLetterStatus.allCases.map { letter(.unknownEventType, $0) }
        let words = DeadLetterListing.list(statuses).table.lines(style: narrow).map { $0.suffix(6) }
        #expect(words == ["STATUS", "  open", "repla…", "disca…"].map { $0[...] })
    }

    @Test("An empty app name is shown differently from a missing one.")
    func emptyGroup() {
        let counts = ["", nil].map { group in
            DeadLetterCount(
                group: group,
                open: 1,
                replayed: 0,
                discarded: 0,
                oldestOpenAt: count.oldestOpenAt,
                newestAt: count.newestAt
            )
        }
        let listing = DeadLetterListing.counts(counts, by: .app)
        #expect(listing.table.lines(style: .plain).map { $0.prefix(3) } == ["APP", "\"\" ", "-  "])
        #expect(counts.map { listing.columns.object(of: $0).line.contains(#""app":null"#) } == [false, true])
    }

    @Test("JSON members have the names of the database's columns.")
    func json() {
        #expect(
            AccountListings.stateColumns.object(of: state("revoked")).line
                == #"{"team_id":"A1B2C3D4E5","sub":"000768.6166f031167141e695698239959f591a.1521","#
                + #""app_id":"com.example.quite.long.application","state":"revoked","#
                + #""authorized_at":"2026-01-02T03:04:05.000Z","revoked_at":"2026-02-03T04:05:06.000Z","#
                + #""deleted_at":null,"email":"k7x2m9@privaterelay.appleid.com","email_is_private":true,"#
                + #""email_deliverable":false}"#
        )
        #expect(
            NotificationPage(notification: notification).json[0].line.hasSuffix(
                #""verified_kid":"fh6Bs8C","jws":null}"#
            )
        )
    }

    @Test("The page of a notification explains its outcome.")
    func outcome() {
        let lines = NotificationPage(notification: notification).lines(style: .plain)
        #expect(lines.contains("outcome   superseded: something newer was known already"))
        #expect(lines.contains("jws       erased"))
    }
}

@Suite("Decoded token")
struct DecodedTokenTests {
    @Test("Long values are split into lines that fit, without losing characters.")
    func fits() throws {
        for name in ["名前", "a", "🚀b"].map({ String(repeating: $0, count: 100) }) {
            let parts = [#"{"kid":"k","alg":"RS256"}"#, #"{"iss":"\#(name)"}"#].map { Base64URL.encode(Array($0.utf8)) }
            let token = try CompactJWS(parsing: Array((parts.joined(separator: ".") + ".AAAA").utf8))
            let lines = DecodedToken(token).lines(style: OutputStyle(width: 80, usesColor: false))
            for line in lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
            let values = lines.dropFirst(2).map { $0.dropFirst(5) }
            #expect(values.joined() == name)
        }
    }
}

@Suite("Schema state")
struct SchemaStateTests {
    private func problem(_ states: MigrationStatus.State...) -> String? {
        SchemaState(
            migrations: states.enumerated().map { index, state in
                MigrationStatus(number: index + 1, name: "m\(index + 1)", state: state, appliedAt: nil)
            }
        ).problem
    }

    @Test("A problem says why a daemon cannot start, and the next step.")
    func problems() {
        #expect(problem(.applied, .applied) == nil)
        #expect(problem(.pending, .pending) == "the database is not migrated: \(SchemaState.nextStep)")
        #expect(problem(.applied, .pending) == "the database misses 1 of 2 migrations: \(SchemaState.nextStep)")
        #expect(
            problem(.applied, .unknown)
                == "the database is newer than this siwad (migration 2 m2): install the siwad that migrated it"
        )
        #expect(problem(.changed, .pending)?.hasPrefix("migration 1 m1 in the database is not the one") == true)
    }
}
