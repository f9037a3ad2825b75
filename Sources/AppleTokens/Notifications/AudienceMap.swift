import Basics

/// The configured apps: maps the `aud` of a notification to its team and app group.
///
/// The text form is a comma-separated list of `TEAMID/primary.app.id`, with further client ids of the same group after
/// `+`: `A1B2C3D4E5/com.example.app+com.example.web`. It may contain several groups and several teams.
package struct AudienceMap: Sendable, Equatable {
    package struct Group: Sendable, Equatable {
        package let team: TeamID
        /// The primary App ID, which notifications carry as `aud`.
        package let app: AppID
        /// The primary App ID is the first one.
        package let clients: [ClientID]
    }

    /// In the order of the text.
    package let groups: [Group]

    private let indexByAudience: [ClientID: Int]

    /// Parses the text form. White space around entries and ids is allowed, empty entries are not.
    package init(parsing text: String) throws(AudienceMapError) {
        var groups: [Group] = []
        var indexByAudience: [ClientID: Int] = [:]
        guard !text.allSatisfy(Self.isSpace) else { throw AudienceMapError(code: .empty, position: 0, entry: "") }
        for (index, entry) in text.split(separator: ",", omittingEmptySubsequences: false).enumerated() {
            let group = try Self.group(entry: entry.trimmed(Self.isSpace), position: index + 1)
            for client in group.clients {
                guard indexByAudience.updateValue(index, forKey: client) == nil else {
                    throw AudienceMapError(code: .duplicateClientID, position: index + 1, entry: client.rawValue)
                }
            }
            groups.append(group)
        }
        self.groups = groups
        self.indexByAudience = indexByAudience
    }

    /// Finds the group of an `aud`. Every client id is accepted, although notifications have only carried primary App IDs.
    package func group(audience: String) -> Group? {
        indexByAudience[ClientID(audience)].map { groups[$0] }
    }

    private static func group(entry: Substring, position: Int) throws(AudienceMapError) -> Group {
        func error(_ code: AudienceMapError.Code) -> AudienceMapError {
            AudienceMapError(code: code, position: position, entry: String(entry))
        }
        guard !entry.isEmpty else { throw error(.emptyEntry) }
        guard let slash = entry.firstIndex(of: "/") else { throw error(.missingTeamID) }
        let team = entry[..<slash].trimmed(isSpace)
        guard isTeamID(team) else { throw error(.malformedTeamID) }
        var clients: [ClientID] = []
        for client in entry[entry.index(after: slash)...].split(separator: "+", omittingEmptySubsequences: false) {
            let client = client.trimmed(isSpace)
            guard isClientID(client) else { throw error(.malformedClientID) }
            clients.append(ClientID(String(client)))
        }
        return Group(team: TeamID(String(team)), app: AppID(clients[0].rawValue), clients: clients)
    }

    private static func isSpace(_ character: Character) -> Bool {
        character == " " || character == "\t" || character.isNewline
    }

    private static func isTeamID(_ text: Substring) -> Bool {
        text.utf8.count == 10 && text.utf8.allSatisfy { $0.isLetterOrDigit && $0 < UInt8(ascii: "a") }
    }

    /// Bundle identifiers and Services IDs have letters, digits, `-` and `.`; old ones also have `_`.
    private static func isClientID(_ text: Substring) -> Bool {
        1...255 ~= text.utf8.count && text.utf8.allSatisfy { $0.isLetterOrDigit || "-._".utf8.contains($0) }
    }
}

/// The reason why the text of an ``AudienceMap`` is invalid.
package struct AudienceMapError: Error, Sendable, Equatable, CustomStringConvertible {
    package enum Code: String, Sendable, CaseIterable {
        case empty
        case emptyEntry
        case missingTeamID
        case malformedTeamID
        case malformedClientID
        /// One `aud` must select one group.
        case duplicateClientID
    }

    package let code: Code
    /// The number of the entry, from 1; 0 if there is none.
    package let position: Int
    /// The entry as written, or the repeated client id.
    package let entry: String

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
            "\(place) does not begin with a team id, ten characters of A–Z and 0–9; expected \(example)"
        case .malformedClientID:
            "\(place) has an app or client id that is empty or contains other characters than letters, digits, “.”, “-” "
                + "and “_”; expected \(example)"
        case .duplicateClientID:
            "\(place) was already used; name each app and client id once"
        }
    }
}
