import AccountStore
import AppleTokens
import JOSE
import Terminal

/// Everything about one notification.
struct NotificationPage: CommandOutput {
    let notification: LoggedNotification

    func lines(style: OutputStyle) -> [String] {
        let row = notification
        let outcome =
            switch row.outcome {
            case "applied": "applied: it changed what is known of this person"
            case "superseded": "superseded: something newer was known already"
            case "unchanged": "unchanged: it said what was known already"
            default: row.outcome
            }
        let absent = row.isTokenHidden ? "hidden from this database role" : "erased"
        let facts = [
            ("jti", row.id), ("type", row.eventType), ("sub", row.subject.rawValue), ("team", row.team.rawValue),
            ("app", row.app.rawValue), ("happened", "\(row.eventTime.secondText) UTC"),
            ("issued", "\(row.issuedAt.secondText) UTC"),
            ("received", "\(row.receivedAt.secondText) UTC, by \(row.source)"),
            ("outcome", outcome), ("sessions", "\(row.sessionsEnded) ended"), ("key", row.verifiedKeyID),
            ("claims", claims ?? absent), ("jws", row.token ?? absent),
        ]
        return facts.map { name, text in name.padding(to: 10) + VisibleText.visible(text) }
    }

    var json: [JSONText] {
        [.object(NotificationListing.columns.members(of: notification) + [.init("jws", notification.token.json)])]
    }

    private var claims: String? {
        // The token was verified before it was stored. If it can't be parsed, the page still shows the token itself.
        guard let token = notification.token, let jws = try? CompactJWS(parsing: Array(token.utf8)) else { return nil }
        return String(decoding: jws.payload, as: UTF8.self)
    }
}
