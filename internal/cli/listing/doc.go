// Package listing reads the lists that a runtime has: pods, containers, images, volumes, devices and events, each as a
// row that a table, a JSON document and the dashboard show.
package listing
