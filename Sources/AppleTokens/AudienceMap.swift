/// Which team and app group a notification's `aud` belongs to: what the operator configured as the apps.
///
/// The text form is a comma-separated list of `TEAMID/primary.app.id`, with further client ids of the same group after
/// `+`: `A1B2C3D4E5/com.example.app+com.example.web`. One map may hold several groups and several teams.
package struct AudienceMap: Sendable, Equatable {
    /// One app group: the primary App ID, which notifications carry as `aud`, and everything grouped under it.
    package struct Group: Sendable, Equatable {
        /// The developer team that owns the group.
        package let team: TeamID
        /// The primary App ID.
        package let app: AppID
        /// Every client id of the group, the primary App ID first.
        package let clients: [ClientID]
    }

    /// The groups in the order in which they were written.
    package let groups: [Group]

    private let indexByAudience: [ClientID: Int]

    /// Reads the text form. White space around entries and ids is allowed, empty entries aren't.
    ///
    /// - Throws: ``AudienceMapError``, which names the entry and what was expected.
    package init(parsing text: String) throws(AudienceMapError) {
        var groups: [Group] = []
        var indexByAudience: [ClientID: Int] = [:]
        guard !Self.trimmed(text[...]).isEmpty else { throw AudienceMapError(code: .empty, position: 0, entry: "") }
        for (index, entry) in text.split(separator: ",", omittingEmptySubsequences: false).enumerated() {
            let group = try Self.group(entry: Self.trimmed(entry), position: index + 1)
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

    /// The group that an `aud` names; nil when it is none of ours.
    ///
    /// Every client id of a group leads to it, though notifications have only ever carried the primary App ID.
    package func group(audience: String) -> Group? {
        indexByAudience[ClientID(audience)].map { groups[$0] }
    }

    private static func group(entry: Substring, position: Int) throws(AudienceMapError) -> Group {
        func error(_ code: AudienceMapError.Code) -> AudienceMapError {
            AudienceMapError(code: code, position: position, entry: String(entry))
        }
        guard !entry.isEmpty else { throw error(.emptyEntry) }
        guard let slash = entry.firstIndex(of: "/") else { throw error(.missingTeamID) }
        let team = trimmed(entry[..<slash])
        guard isTeamID(team) else { throw error(.malformedTeamID) }
        var clients: [ClientID] = []
        for client in entry[entry.index(after: slash)...].split(separator: "+", omittingEmptySubsequences: false) {
            let client = trimmed(client)
            guard isClientID(client) else { throw error(.malformedClientID) }
            clients.append(ClientID(String(client)))
        }
        return Group(team: TeamID(String(team)), app: AppID(clients[0].rawValue), clients: clients)
    }

    private static func trimmed(_ text: Substring) -> Substring {
        let isSpace: (Character) -> Bool = { $0 == " " || $0 == "\t" || $0.isNewline }
        var rest = text.drop(while: isSpace)
        while let last = rest.last, isSpace(last) { rest.removeLast() }
        return rest
    }

    private static func isTeamID(_ text: Substring) -> Bool {
        text.utf8.count == 10
            && text.utf8.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "0")...UInt8(ascii: "9"): true
                default: false
                }
            }
    }

    /// Bundle identifiers and Services IDs are letters, digits, `-` and `.`; `_` is in old ones.
    private static func isClientID(_ text: Substring) -> Bool {
        1...255 ~= text.utf8.count
            && text.utf8.allSatisfy { byte in
                switch byte {
                case UInt8(ascii: "A")...UInt8(ascii: "Z"), UInt8(ascii: "a")...UInt8(ascii: "z"),
                    UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"):
                    true
                default: false
                }
            }
    }
}
