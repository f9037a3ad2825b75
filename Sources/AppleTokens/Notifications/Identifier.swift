import Basics

/// An opaque identifier in the vocabulary of Apple or the application.
///
/// Identifiers are compared and ordered by their bytes, as PostgreSQL does with `COLLATE "C"`. Swift's `String` also treats
/// canonically equivalent texts as equal.
package struct Identifier<Kind>: RawRepresentable, Hashable, Comparable, Sendable, CustomStringConvertible {
    package let rawValue: String

    package init(rawValue: String) { self.rawValue = rawValue }

    package init(_ text: String) { self.init(rawValue: text) }

    package var description: String { rawValue }

    package static func == (lhs: Self, rhs: Self) -> Bool {
        lhs.rawValue.hasSameBytes(as: rhs.rawValue)
    }

    package static func < (lhs: Self, rhs: Self) -> Bool {
        lhs.rawValue.utf8.lexicographicallyPrecedes(rhs.rawValue.utf8)
    }

    package func hash(into hasher: inout Hasher) {
        hasher.combine(rawValue)
    }
}

/// An Apple developer team: ten characters of A–Z and 0–9. A `sub` identifies a person only together with its team.
package typealias TeamID = Identifier<IdentifierKind.Team>

/// The primary App ID of an app group, a bundle identifier: consent is given and revoked for the whole group.
package typealias AppID = Identifier<IdentifierKind.App>

/// An id that an application signs in with: the primary App ID, another App ID of its group, or a Services ID.
package typealias ClientID = Identifier<IdentifierKind.Client>

/// Apple's identifier of a person (`sub`): the same in all apps of a team, and different in every other team. 1…256 bytes in
/// a verified notification.
package typealias Subject = Identifier<IdentifierKind.Person>

/// The identifier of a notification (`jti`), which identifies duplicates. 1…256 bytes in a verified notification.
package typealias NotificationID = Identifier<IdentifierKind.Notification>

package enum IdentifierKind {
    package enum Team {}
    package enum App {}
    package enum Client {}
    package enum Person {}
    package enum Notification {}
}
