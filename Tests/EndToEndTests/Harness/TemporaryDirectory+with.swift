import TestSupport

extension TemporaryDirectory {
    /// Runs `body` with a directory, which is removed afterwards.
    static func with<R>(_ body: (TemporaryDirectory) async throws -> R) async throws -> R {
        let directory = try TemporaryDirectory()
        let result = try await body(directory)
        return withExtendedLifetime(directory) { result }
    }

    /// Writes a text file and returns its path.
    func write(_ name: String, _ text: String) throws -> String {
        try write(Array(text.utf8), to: name)
        return file(name)
    }
}
