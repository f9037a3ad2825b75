/// Why the text of an ``AudienceMap`` can't be read. Never worth a retry: the operator has to correct it.
package struct AudienceMapError: Error, Sendable, Equatable, CustomStringConvertible {
    /// What is wrong.
    package enum Code: String, Sendable, CaseIterable {
        /// No entry at all.
        case empty
        /// Nothing between two commas.
        case emptyEntry
        /// An entry without `/`.
        case missingTeamID
        /// What stands before `/` isn't ten characters of A–Z and 0–9.
        case malformedTeamID
        /// An app or client id that is empty or holds a character that none has.
        case malformedClientID
        /// A client id that an earlier place holds already: one `aud` must lead to one group.
        case duplicateClientID
    }

    /// What is wrong.
    package let code: Code
    /// Which entry, from 1; 0 when there is none.
    package let position: Int
    /// The entry as written, or the client id that stands there twice.
    package let entry: String

    /// One line that names the entry, what was expected and an example.
    package var description: String {
        let example = "TEAMID/primary.app.id, such as A1B2C3D4E5/com.example.app+com.example.web"
        let place = "entry \(position) “\(entry)”"
        return switch code {
        case .empty:
            "no app is named; expected \(example)"
        case .emptyEntry:
            "entry \(position) is empty; expected \(example), separated by single commas"
        case .missingTeamID:
            "\(place) has no team id; expected \(example)"
        case .malformedTeamID:
            "\(place) doesn't begin with a team id, ten characters of A–Z and 0–9; expected \(example)"
        case .malformedClientID:
            "\(place) has an app or client id that is empty or holds other characters than letters, digits, “.”, “-” "
                + "and “_”; expected \(example)"
        case .duplicateClientID:
            "\(place) is named already; name each app and client id once"
        }
    }
}
