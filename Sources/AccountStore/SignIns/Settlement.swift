package import AppleTokens
package import Basics
import Postgres

/// What a sign-in ends with, after the exchange of its code.
package struct Settlement: Sendable, Equatable {
    package struct Session: Sendable, Equatable {
        package let id: String
        package let createdAt: WallTime
        package let expiresAt: WallTime?

        package init(id: String, createdAt: WallTime, expiresAt: WallTime?) {
            self.id = id
            self.createdAt = createdAt
            self.expiresAt = expiresAt
        }
    }

    package struct Name: Sendable, Equatable {
        package let given: String?
        package let family: String?

        package init(given: String?, family: String?) {
            self.given = given
            self.family = family
        }
    }

    /// Of ``Reservation/reserved(signInID:)``.
    package var signInID: Int64
    package var subject: Subject
    /// An address that Apple has verified.
    package var email: VerifiedIdentity.Email?
    /// `iat` of the identity token.
    package var signedInAt: WallTime
    package var name: Name?
    /// False: ``name`` is not stored.
    package var keepsNames: Bool
    /// `likely-real`, `unknown`, `unsupported` or nil.
    package var realUserStatus: String?
    package var refresh: RefreshState
    package var session: Session?

    package init(
        signInID: Int64,
        subject: Subject,
        email: VerifiedIdentity.Email? = nil,
        signedInAt: WallTime,
        name: Name? = nil,
        keepsNames: Bool = true,
        realUserStatus: String? = nil,
        refresh: RefreshState,
        session: Session? = nil
    ) {
        self.signInID = signInID
        self.subject = subject
        self.email = email
        self.signedInAt = signedInAt
        self.name = name
        self.keepsNames = keepsNames
        self.realUserStatus = realUserStatus
        self.refresh = refresh
        self.session = session
    }
}

/// What the exchange of the code brought.
package enum RefreshState: Sendable, Equatable {
    /// A token. Pass it to ``RefreshTokens/store(_:of:in:)`` in the same transaction.
    case stored
    /// Nothing yet. The sealed text holds all that the next attempt needs.
    case pending(sealedCode: [UInt8], due: WallTime)
    /// There was no code.
    case none
    /// The code was used up, and the answer to it was lost or can't be verified.
    case lost
    /// Apple's code of the error. `invalid_grant` for a sign-in that was taken over counts as ``lost``, because the earlier
    /// attempt may have used the code.
    case refused(String)
}

/// What became of the refresh token (`siwa.sign_ins.refresh`).
package enum RefreshOutcome: String, PostgresValue, Sendable, CaseIterable {
    case stored
    /// The code is traded in the background.
    case pending
    /// None came, or Apple refused the code with `invalid_grant`; an older token is there.
    case kept
    case none
    case lost
    case refused
}

package enum Settled: Sendable, Equatable {
    case settled(SettledSignIn)
    /// Nothing of the sign-in is stored, and its row is gone: the caller may commit or roll back.
    case refused(SignInConflict)
}

/// A settled sign-in with the present state of its person.
package struct SettledSignIn: Sendable, Equatable {
    package struct Email: Sendable, Equatable {
        package let address: String
        /// Whether it is a relay address; nil if unknown.
        package let isPrivate: Bool?
        package let isDeliverable: Bool
    }

    package struct Name: Sendable, Equatable {
        package let given: String?
        package let family: String?
        package let capturedAt: WallTime
    }

    package struct Session: Sendable, Equatable {
        package let id: String
        package let isLive: Bool
        package let createdAt: WallTime
        package let expiresAt: WallTime?
    }

    package let signInID: Int64
    package let client: ClientID
    package let app: AppID
    package let team: TeamID
    package let accountID: Int64
    package let subject: Subject
    /// As in `siwa.account_states`.
    package let state: String
    /// The first sign-in of the person to this app group.
    package let isNewAccount: Bool
    package let signedInAt: WallTime
    /// The address of the account, which another sign-in or a notification may have reported.
    package let email: Email?
    package let name: Name?
    package let realUserStatus: String?
    package let refresh: RefreshOutcome
    /// Apple's code of the error, for ``RefreshOutcome/refused``.
    package let refreshError: String?
    /// nil if the sign-in opened none, and after a session was deleted.
    package let session: Session?
}
