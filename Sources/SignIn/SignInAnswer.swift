package import AppleTokens
package import Basics
import JOSE

/// The answer to a sign-in. Its JSON always has all members; one that is absent is null.
package struct SignInAnswer: Sendable, Equatable {
    package struct Account: Sendable, Equatable {
        package let id: Int64
        package let team: TeamID
        package let subject: Subject
        package let app: AppID
        package let client: ClientID
        /// As in `siwa.account_states`.
        package let state: String

        package init(
            id: Int64,
            team: TeamID,
            subject: Subject,
            app: AppID,
            client: ClientID,
            state: String
        ) {
            self.id = id
            self.team = team
            self.subject = subject
            self.app = app
            self.client = client
            self.state = state
        }
    }

    /// An address that Apple has verified.
    package struct Email: Sendable, Equatable {
        package let address: String
        package let isPrivate: Bool
        package let isDeliverable: Bool

        package init(address: String, isPrivate: Bool, isDeliverable: Bool) {
            self.address = address
            self.isPrivate = isPrivate
            self.isDeliverable = isDeliverable
        }
    }

    package struct Name: Sendable, Equatable {
        package let given: String?
        package let family: String?
        package let capturedAt: WallTime

        package init(given: String?, family: String?, capturedAt: WallTime) {
            self.given = given
            self.family = family
            self.capturedAt = capturedAt
        }
    }

    package struct Session: Sendable, Equatable {
        package let id: String
        package let isLive: Bool
        package let createdAt: WallTime
        package let expiresAt: WallTime?

        package init(id: String, isLive: Bool, createdAt: WallTime, expiresAt: WallTime?) {
            self.id = id
            self.isLive = isLive
            self.createdAt = createdAt
            self.expiresAt = expiresAt
        }
    }

    /// What became of the refresh token.
    package enum RefreshToken: String, Sendable, CaseIterable {
        case stored
        /// The code is traded in the background.
        case pending
        /// None came; an older one is there.
        case kept
        /// The request had no code.
        case none
        /// The code was used up, and the answer to it was lost or can't be verified.
        case lost
        /// Apple refused the code: see ``SignInAnswer/refreshTokenError``.
        case refused
    }

    package var signInID: Int64
    /// The same request was answered before.
    package var isRepeated: Bool
    /// The first sign-in of the person to this app group.
    package var isNewAccount: Bool
    package var signedInAt: WallTime
    package var account: Account
    package var email: Email?
    package var name: Name?
    /// `likely-real`, `unknown`, `unsupported`, or nil.
    package var realUserStatus: String?
    package var organization: String?
    package var transferSubject: String?
    package var linkedUserID: String?
    package var isEmailLinkable: Bool
    package var refreshToken: RefreshToken
    /// Apple's code of the error, for `refused`.
    package var refreshTokenError: String?
    package var session: Session?

    package init(
        signInID: Int64,
        isRepeated: Bool,
        isNewAccount: Bool,
        signedInAt: WallTime,
        account: Account,
        email: Email? = nil,
        name: Name? = nil,
        realUserStatus: String? = nil,
        organization: String? = nil,
        transferSubject: String? = nil,
        linkedUserID: String? = nil,
        isEmailLinkable: Bool = false,
        refreshToken: RefreshToken,
        refreshTokenError: String? = nil,
        session: Session? = nil
    ) {
        self.signInID = signInID
        self.isRepeated = isRepeated
        self.isNewAccount = isNewAccount
        self.signedInAt = signedInAt
        self.account = account
        self.email = email
        self.name = name
        self.realUserStatus = realUserStatus
        self.organization = organization
        self.transferSubject = transferSubject
        self.linkedUserID = linkedUserID
        self.isEmailLinkable = isEmailLinkable
        self.refreshToken = refreshToken
        self.refreshTokenError = refreshTokenError
        self.session = session
    }
}

// MARK: - JSON

extension SignInAnswer {
    package var json: String {
        JSONValue.answer(
            ("sign_in_id", .string("\(signInID)")),
            ("repeated", .boolean(isRepeated)),
            ("new_account", .boolean(isNewAccount)),
            ("signed_in_at", .time(signedInAt)),
            ("account", account.json),
            ("email", email?.json ?? .null),
            ("name", name?.json ?? .null),
            ("real_user_status", .text(realUserStatus)),
            ("org_id", .text(organization)),
            ("transfer_sub", .text(transferSubject)),
            ("linked_user_id", .text(linkedUserID)),
            ("linkable_email", .boolean(isEmailLinkable)),
            ("refresh_token", .string(refreshToken.rawValue)),
            ("refresh_token_error", .text(refreshTokenError)),
            ("session", session?.json ?? .null)
        ).compactText
    }
}

extension SignInAnswer.Account {
    fileprivate var json: JSONValue {
        .answer(
            ("id", .string("\(id)")),
            ("team_id", .string(team.rawValue)),
            ("sub", .string(subject.rawValue)),
            ("app_id", .string(app.rawValue)),
            ("client_id", .string(client.rawValue)),
            ("state", .string(state))
        )
    }
}

extension SignInAnswer.Email {
    fileprivate var json: JSONValue {
        .answer(
            ("address", .string(address)),
            ("verified", .boolean(true)),
            ("private", .boolean(isPrivate)),
            ("deliverable", .boolean(isDeliverable))
        )
    }
}

extension SignInAnswer.Name {
    fileprivate var json: JSONValue {
        .answer(("given", .text(given)), ("family", .text(family)), ("captured_at", .time(capturedAt)))
    }
}

extension SignInAnswer.Session {
    fileprivate var json: JSONValue {
        .answer(
            ("id", .string(id)),
            ("live", .boolean(isLive)),
            ("created_at", .time(createdAt)),
            ("expires_at", expiresAt.map(JSONValue.time) ?? .null)
        )
    }
}

extension JSONValue {
    static func answer(_ members: (name: String, value: JSONValue)...) -> JSONValue {
        .object(members.map { Member($0.name, $0.value) })
    }

    static func text(_ text: String?) -> JSONValue { text.map(JSONValue.string) ?? .null }

    static func time(_ time: WallTime) -> JSONValue { .string(time.iso8601) }
}
