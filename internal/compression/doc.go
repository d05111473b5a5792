// Package compression decompresses what layers and archives are packed by. It looks at the first bytes:
// media types and names are not always right. What it reads is hostile: it runs in a child (package jail).
package compression
