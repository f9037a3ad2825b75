import ArgumentParser

/// Whom a listing is about.
struct AccountFilterOptions: ParsableArguments {
    @Option(name: .long, help: "Apple's identifier of the person.")
    var sub: String?
    @Option(name: .long, help: ArgumentHelp("Developer team.", valueName: "team-id"))
    var team: String?
    @Option(name: .long, help: ArgumentHelp("App group, by its primary App ID.", valueName: "app-id"))
    var app: String?

    /// Refuses a word that isn't one of a closed set.
    static func check(_ word: String?, _ name: String, _ words: [String]) throws {
        guard let word, !words.contains(word) else { return }
        throw ValidationError("\(name) is one of \(words.joined(separator: ", "))")
    }
}
