import Glibc
import Subprocess

/// The directories of one cluster, owned by the user that the server runs as and closed to all others.
struct ClusterPlace {
    let directory: String
    let isTemporary: Bool

    /// The longest directory for a socket: the kernel's 108 bytes for its address less `/.s.PGSQL.65535` and the end.
    private static let longestSocketDirectory = 107 - 15

    /// Where the socket is: a place outside when the directory's own name is too long for one.
    var socketDirectory: String {
        let inside = "\(directory)/socket"
        return inside.utf8.count <= Self.longestSocketDirectory ? inside : Self.outside(directory, in: "/tmp")
    }

    /// Makes and hands over `directory`. If the server's user cannot get there, because it lies in root's home say, the
    /// cluster lives under `/var/tmp` instead, in a directory that the link `elsewhere` in `directory` leads to: whoever
    /// removes `directory` begins anew.
    static func prepare(_ directory: String, for user: ServerUser?) async throws(LocalPostgresError) -> ClusterPlace {
        let directory = try absolute(directory)
        try makeParents(of: directory)
        try own(directory, user)
        var place = ClusterPlace(directory: directory, isTemporary: false)
        if let user, await !isReachable(directory, by: user) {
            place = ClusterPlace(directory: try elsewhere(directory), isTemporary: false)
            try own(place.directory, user)
        }
        try own(place.socketDirectory, user)
        return place
    }

    /// Makes a directory of a name that nobody can foresee.
    static func makeTemporary(for user: ServerUser?) throws(LocalPostgresError) -> ClusterPlace {
        let place = ClusterPlace(directory: unforeseeable(in: "/tmp"), isTemporary: true)
        try own(place.directory, user)
        try own(place.socketDirectory, user)
        return place
    }

    // MARK: - Private parts

    private static func absolute(_ path: String) throws(LocalPostgresError) -> String {
        var path = path
        while path.count > 1, path.hasSuffix("/") { path.removeLast() }
        if path.hasPrefix("/") { return path }
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        guard getcwd(&buffer, buffer.count) != nil else {
            throw LocalPostgresError(
                .unusableDirectory,
                "the working directory is gone; give the cluster's directory from the root"
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

    /// Makes a directory if it is not there, and sees to it that it is a real one, the server's user's, and closed.
    private static func own(_ path: String, _ user: ServerUser?) throws(LocalPostgresError) {
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
        // A shell that cannot be started as that user tells the same as one that cannot enter.
        let result = try? await run(
            .name(command[0]),
            arguments: Arguments(Array(command.dropFirst())),
            output: .discarded
        )
        return result?.terminationStatus.isSuccess ?? false
    }

    /// Where the link in a directory leads; it is made where there is none.
    private static func elsewhere(_ path: String) throws(LocalPostgresError) -> String {
        let link = path + "/elsewhere"
        let target = unforeseeable(in: "/var/tmp")
        if symlink(target, link) == 0 { return target }
        guard errno == EEXIST else { throw unusable(link) }
        var buffer = [CChar](repeating: 0, count: Int(PATH_MAX))
        let count = readlink(link, &buffer, buffer.count)
        guard count > 0 else { throw unusable(link) }
        return String(decoding: buffer.prefix(count).map { UInt8(bitPattern: $0) }, as: UTF8.self)
    }

    /// A name that nobody else can have taken or can guess.
    private static func unforeseeable(in parent: String) -> String {
        "\(parent)/local-postgres-\(String(UInt64.random(in: 0...UInt64.max), radix: 36))"
    }

    /// A directory elsewhere that is always the same for the same path (FNV-1a).
    private static func outside(_ path: String, in parent: String) -> String {
        var hash: UInt64 = 0xcbf2_9ce4_8422_2325
        for byte in path.utf8 { hash = (hash ^ UInt64(byte)) &* 0x100_0000_01b3 }
        return "\(parent)/local-postgres-\(String(hash, radix: 36))"
    }

    private static func unusable(_ path: String) -> LocalPostgresError {
        LocalPostgresError(
            .unusableDirectory,
            "\(path) cannot be used (error \(errno)); give a directory that this user may make"
        )
    }
}
