import Glibc
import Subprocess

/// The directories of one cluster. The user that the server runs as owns them, and no other user can enter them.
struct ClusterDirectory {
    let path: String
    let isTemporary: Bool

    /// The longest directory for a socket: the kernel's 108 bytes for its address less `/.s.PGSQL.65535` and the NUL.
    private static let longestSocketDirectory = 107 - 15

    private static let name = "local-postgres-"

    /// Inside the directory unless its path is too long for a socket.
    var socketDirectory: String {
        let inside = "\(path)/socket"
        return inside.utf8.count <= Self.longestSocketDirectory ? inside : Self.shortPath(for: path)
    }

    /// Creates `path` for the server's user. If that user cannot reach it, for example in root's home, the cluster is
    /// stored under `/var/tmp` instead, where the link `elsewhere` in `path` points: removing `path` removes the link too,
    /// and the next cluster starts empty.
    static func prepare(_ path: String, for user: ServerUser?) async throws(LocalPostgresError) -> ClusterDirectory {
        let path = try absolute(path)
        try makeParents(of: path)
        try makePrivate(path, user)
        var directory = ClusterDirectory(path: path, isTemporary: false)
        if let user, await !isReachable(path, by: user) {
            directory = ClusterDirectory(path: try linkTarget(in: path), isTemporary: false)
            try makePrivate(directory.path, user)
        }
        try makePrivate(directory.socketDirectory, user)
        return directory
    }

    /// Creates a directory with a random name.
    ///
    /// In memory if there is enough: creating and dropping databases makes and deletes hundreds of files each time, for which
    /// ext4 searches long for an inode that was not just deleted.
    static func makeTemporary(for user: ServerUser?) throws(LocalPostgresError) -> ClusterDirectory {
        let parent = hasRoom(inMemory) ? inMemory : "/tmp"
        let directory = ClusterDirectory(path: randomPath(in: parent), isTemporary: true)
        try makePrivate(directory.path, user)
        try makePrivate(directory.socketDirectory, user)
        return directory
    }

    /// Removes a directory that ``prepare(_:for:)`` made, and the one that its link points to.
    static func remove(_ path: String) async throws -> Bool {
        var status = stat()
        guard lstat(path, &status) == 0 else { return false }
        let target = try access("\(path)/elsewhere", F_OK) == 0 ? linkTarget(in: path) : path
        try await waitForServer(in: target, atMost: .seconds(10))
        // Renamed first, so that an interruption leaves nothing that looks like a cluster.
        let removed = "\(path).removed"
        try await delete([removed])
        guard rename(path, removed) == 0 else { throw unusable(path) }
        let isLinked = target != path && target.hasPrefix("/var/tmp/\(name)")
        try await delete([removed] + (isLinked ? [target] : []))
        return true
    }

    /// Waits until no server uses a cluster: after the process that started it was killed, a server takes some time to stop.
    static func waitForServer(in cluster: String, atMost time: Duration) async throws {
        let deadline = ContinuousClock.now + time
        while let server = runningServer(in: cluster) {
            guard .now < deadline else {
                throw LocalPostgresError(
                    .unusableDirectory,
                    "process \(server) is a PostgreSQL server that uses \(cluster): stop it first"
                )
            }
            try await Task.sleep(for: .milliseconds(50))
        }
    }

    // MARK: - Private parts

    /// Linux has a file system in memory here, which every user may write to.
    private static let inMemory = "/dev/shm"
    /// In bytes: several times what a cluster with PostgreSQL's stock settings and some databases needs.
    private static let room: UInt64 = 4 << 30

    private static func hasRoom(_ path: String) -> Bool {
        var status = statvfs()
        guard access(path, W_OK) == 0, statvfs(path, &status) == 0 else { return false }
        return UInt64(status.f_bavail) * UInt64(status.f_frsize) >= room
    }

    private static func delete(_ paths: [String]) async throws {
        let result = try await run(.name("rm"), arguments: Arguments(["-rf", "--"] + paths), output: .discarded)
        guard result.terminationStatus.isSuccess else { throw unusable(paths[0]) }
    }

    /// The process of a server that uses a cluster. Its lock file may be left from a crash, and its number another process's.
    private static func runningServer(in cluster: String) -> Int32? {
        guard let file = fopen("\(cluster)/data/postmaster.pid", "r") else { return nil }
        defer { fclose(file) }
        var line = [UInt8](repeating: 0, count: 16)
        let count = fread(&line, 1, line.count, file)
        let digits = line.prefix(count).prefix { $0 != UInt8(ascii: "\n") }
        guard let process = Int32(String(decoding: digits, as: UTF8.self)),
            let data = resolved("\(cluster)/data"), resolved("/proc/\(process)/cwd") == data
        else { return nil }
        return process
    }

    /// The path without links; nil if it does not exist or may not be read.
    private static func resolved(_ path: String) -> String? {
        guard let resolved = realpath(path, nil) else { return nil }
        defer { free(resolved) }
        return String(cString: resolved)
    }

    private static func absolute(_ path: String) throws(LocalPostgresError) -> String {
        var path = path
        while path.count > 1, path.hasSuffix("/") { path.removeLast() }
        if path.hasPrefix("/") { return path }
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        guard getcwd(&buffer, buffer.count) != nil else {
            throw LocalPostgresError(
                .unusableDirectory,
                "the working directory was removed; give the cluster's directory as an absolute path"
            )
        }
        let bytes = buffer.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }
        return String(decoding: bytes, as: UTF8.self) + "/" + path
    }

    private static func makeParents(of path: String) throws(LocalPostgresError) {
        var parent = ""
        for component in path.split(separator: "/").dropLast() {
            parent += "/\(component)"
            guard mkdir(parent, 0o755) == 0 || errno == EEXIST else { throw unusable(parent) }
        }
    }

    /// Creates a directory unless it exists, checks that it is one and that the server's user owns it, and sets its mode.
    private static func makePrivate(_ path: String, _ user: ServerUser?) throws(LocalPostgresError) {
        let owner = user?.userID ?? geteuid()
        let isNew = mkdir(path, 0o700) == 0
        guard isNew || errno == EEXIST else { throw unusable(path) }
        if isNew, let user, chown(path, user.userID, user.groupID) != 0 { throw unusable(path) }
        var status = stat()
        guard lstat(path, &status) == 0 else { throw unusable(path) }
        guard status.st_mode & S_IFMT == S_IFDIR, status.st_uid == owner else {
            throw LocalPostgresError(
                .unusableDirectory,
                "\(path) is not a directory of the user that PostgreSQL runs as (\(owner)); move it away"
            )
        }
        guard chmod(path, 0o700) == 0 else { throw unusable(path) }
    }

    private static func isReachable(_ path: String, by user: ServerUser) async -> Bool {
        let command = ServerUser.shell(user, "cd \"$1\" && test -w .", [path])
        // If no shell can be started as that user, the directory is not reachable either.
        let result = try? await run(
            .name(command[0]),
            arguments: Arguments(Array(command.dropFirst())),
            output: .discarded
        )
        return result?.terminationStatus.isSuccess ?? false
    }

    /// The target of the link in a directory, which is created if it does not exist.
    private static func linkTarget(in path: String) throws(LocalPostgresError) -> String {
        let link = path + "/elsewhere"
        let target = randomPath(in: "/var/tmp")
        if symlink(target, link) == 0 { return target }
        guard errno == EEXIST else { throw unusable(link) }
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        let count = readlink(link, &buffer, buffer.count)
        guard count > 0 else { throw unusable(link) }
        return String(decoding: buffer.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    private static func randomPath(in parent: String) -> String {
        "\(parent)/\(name)\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
    }

    /// A short path that is always the same for the same long one (FNV-1a).
    private static func shortPath(for path: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in path.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        return "/tmp/\(name)\(String(hash, radix: 36))"
    }

    private static func unusable(_ path: String) -> LocalPostgresError {
        let message = "\(path) cannot be used (error \(errno)); give a directory that this user may create"
        return LocalPostgresError(.unusableDirectory, message)
    }
}
