<?php // Receives siwad's webhooks: verifies each, and acts on it once. Needs pdo_sqlite. Environment: SECRET, DATABASE.
[$id, $timestamp] = [$_SERVER['HTTP_WEBHOOK_ID'] ?? '', $_SERVER['HTTP_WEBHOOK_TIMESTAMP'] ?? ''];
[$body, $secret] = [file_get_contents('php://input'), getenv('SECRET') ?: ''];
$key = base64_decode(substr($secret, 6), true);
http_response_code(500); // Until the end: if acting fails, siwad sends the event again.
if (!str_starts_with($secret, 'whsec_') || strlen($key) < 24) throw new Exception('SECRET must be whsec_…');
$expected = 'v1,' . base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true));
$matching = array_filter(
    explode(' ', $_SERVER['HTTP_WEBHOOK_SIGNATURE'] ?? ''), fn($signature) => hash_equals($expected, $signature));
if (!$matching || abs(time() - (int) $timestamp) > 300) {
    http_response_code(400);
    exit;
}
['type' => $type, 'data' => $data] = json_decode($body, true);
$facet = json_encode([
    $data['team_id'] ?? '', $data['sub'] ?? '', explode('.', $type)[1], ($data['scope'] ?? '') === 'app' ? $data['app_id'] : '']);
$database = new PDO('sqlite:' . getenv('DATABASE'));
$database->exec('CREATE TABLE IF NOT EXISTS handled (id TEXT PRIMARY KEY, facet TEXT, position INTEGER)');
$database->exec('BEGIN IMMEDIATE'); // One transaction: if acting fails, nothing is stored.
$insert = $database->prepare('INSERT OR IGNORE INTO handled VALUES (?, ?, ?)');
$insert->execute([$id, $facet, $data['position'] ?? 0]);
if ($insert->rowCount() && isset($data['position'])) { // Act here, in the same database.
    if (isset($data['sessions']) || isset($data['session_id'])) // In any order, because what ended never comes back.
        error_log("{$data['sub']}: end " . ($data['session_id'] ?? $data['sessions']['created_until'] ?? 'all'));
    $latest = $database->prepare('SELECT max(position) FROM handled WHERE facet = ?');
    $latest->execute([$facet]); // The person's state, unless a later change has set it:
    if ((int) $latest->fetchColumn() === $data['position']) error_log("{$data['sub']}: $type");
}
$database->exec('COMMIT');
http_response_code(204);
