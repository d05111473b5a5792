package dashboard

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"time"
)

// assets are the files of the page, written by hand: there is no build.
//
//go:embed assets
var assets embed.FS

// types are the media types of the files, the same on every machine.
var types = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml",
}

// serveAsset serves a file of the page.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Path
	if name == "/" {
		name = "/assets/index.html"
	}
	data, err := assets.ReadFile(path.Clean(name)[1:])
	kind := types[path.Ext(name)]
	if err != nil || kind == "" {
		refuse(w, http.StatusNotFound, "no such page")
		return
	}
	w.Header().Set("Content-Type", kind)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}
