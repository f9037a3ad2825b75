import AccountStore
import AppleTokens
import Basics
import Terminal

/// Refresh tokens, as `siwa.refresh_tokens` has them. Nothing here has a sealed text.
enum TokenListing {
    static var columns: [Column<RefreshTokenRecord>] {
        [
            .init("account_id", \.accountID, "ACCOUNT", .right),
            .init("team_id", \.team.rawValue, "TEAM"),
            .init("sub", \.subject.rawValue, "SUB", .cutEnd(minimum: 15)),
            .init("app_id", \.app.rawValue, "APP", .cutStart(minimum: 8)),
            .init("client_id", \.client.rawValue, "CLIENT ID", .cutStart(minimum: 8)),
            .init("state", \.state.rawValue, "STATE") { cell($0.state) },
            .init("obtained_at", \.obtainedAt, "OBTAINED (UTC)"),
            .init("key_name", \.keyName, "KEY"),
            .init("validated_at", \.validatedAt, "VALIDATED (UTC)"),
            .init("asked_at", \.askedAt, "ASKED (UTC)"),
            .init("due_at", \.dueAt, "DUE (UTC)"),
            .init("refusals", { Int($0.refusals) }, "REFUSALS", .right),
        ]
    }

    static func list(_ rows: [RefreshTokenRecord]) -> Listing<RefreshTokenRecord> {
        Listing(
            rows: rows,
            noun: "refresh token",
            part: "latest",
            columns: columns,
            titles: ["SUB", "CLIENT ID", "STATE", "OBTAINED (UTC)"],
            furtherTitles: ["KEY"]
        )
    }

    private static func cell(_ state: RefreshTokenRecord.State) -> Table.Cell {
        let color: Color? =
            switch state {
            case .valid: .green
            case .refused: .yellow
            case .unreadable: .red
            }
        return Table.Cell(state.rawValue, color: color)
    }
}

/// One refresh token, and what its state means.
struct TokenPage: CommandOutput {
    private let token: RefreshTokenRecord

    init(_ token: RefreshTokenRecord) { self.token = token }

    func lines(style: OutputStyle) -> [String] {
        let facts = [
            ("person", "\(token.subject) in team \(token.team)"), ("app", token.app.rawValue),
            ("obtained", utc(token.obtainedAt)), ("sealed with", token.keyName),
            ("validated", token.validatedAt.map(utc) ?? "never"), ("asked", token.askedAt.map(utc) ?? "never"),
            ("due", utc(token.dueAt)), ("refusals", String(token.refusals)),
        ]
        let title = VisibleText.visible("refresh token of \(token.client), \(token.state.rawValue)")
        return [style.painted(title, .bold)] + style.hanging("  ", indentation: 2, meaning) + [""]
            + style.facts(facts.map { (name: $0.0, text: VisibleText.visible($0.1)) }, nameWidth: 13)
    }

    var json: [JSONText] { [TokenListing.columns.object(of: token)] }

    private var meaning: String {
        switch token.state {
        case .valid: "Apple has not refused it."
        case .refused: "Apple refuses it: the person has to sign in again."
        case .unreadable:
            "No key of SIWAD_SEALING_KEYS opened it. Put its key back and run "
                + "\(nextCommand("sealing rotate --note '…'")), or let the person sign in again."
        }
    }

    private func utc(_ time: WallTime) -> String { "\(time.secondText) UTC" }
}
